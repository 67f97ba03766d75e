"""The decode loop. There is one: a request that is prefilled and then proposes and verifies until it is finished.

Target-only decoding is the same loop with a drafter that proposes nothing, so both lanes of a race run the
same engine code, clock and stop rule.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from transformers import PreTrainedModel

from specllava.config import DecodingConfig
from specllava.engine.decoders import Batch
from specllava.engine.pool import EXACT_ROWS, KVCaches
from specllava.models.language_model import now
from specllava.prompt import Prompt, slots_of
from specllava.spec_decode.drafter import Drafter, NoDraft, check_proposal
from specllava.spec_decode.growth import GrowthRule
from specllava.spec_decode.logits_processing import AnswerSettings
from specllava.spec_decode.rejection_sampler import (
    DrawRecorder,
    GreedyChoices,
    RejectionSampler,
    SeededRandom,
    margins,
    target_view,
)
from specllava.spec_decode.tree_drafter import TreeDrafter
from specllava.trace import SPECULATIVE, TARGET_ONLY, FinishReason, Prefill, StepSeconds, StepTrace
from specllava.tree import DraftTree, Pruned

Event = Prefill | StepTrace


class LaneOverrides(TypedDict, total=False):
    """Objects of the caller that replace those named by the configuration; each serves one answer at a time."""

    rule: GrowthRule | None
    drafter: Drafter | None


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to answer a prompt, which a race runs and a trace records.

    Args:
        rule, drafter: objects that replace those of ``config``.
    """

    name: str
    config: DecodingConfig
    prompt: Prompt
    rule: GrowthRule | None = None
    drafter: Drafter | None = None

    @classmethod
    def of(cls, config: DecodingConfig, prompt: Prompt, **own: Unpack[LaneOverrides]) -> Lane:
        """Return a lane with its ordinary name."""
        drafts = own.get("drafter") is not None or config.drafter != "none"
        return cls(SPECULATIVE if drafts else TARGET_ONLY, config, prompt, **own)

    def with_target_only(self) -> list[Lane]:
        """Return the lanes of a race: target-only in front of this one; only target-only if this drafts nothing."""
        alone = Lane.of(replace(self.config, drafter="none"), self.prompt)
        return [alone] if self.name == TARGET_ONLY else [alone, self]


@dataclass(frozen=True, slots=True)
class RaceEvent:
    """What just happened in a race.

    Args:
        lane: the one that moved.
        item: its prefill or step; ``item.finished`` is the reason if it was the last.
        clock: seconds on that lane's own clock, which counts only that lane's compute.
    """

    lane: Lane
    item: Event
    clock: float


class Request:
    """One answer in the making: ``prefill``, then ``propose`` and ``verify`` in turn until it is ``finished``.

    A scheduler of several requests may pause each between any two phases.

    Args:
        settings: what else the checkpoint asks of the answer.
        caches: KV caches to go on with; what the prompt shares with them is not read again.
        length: tokens of prompt and answer that the caches are for.
        record: note what the target thought of every node and what was drawn, for a trace that explains itself; outside
            every clock.
    """

    def __init__(
        self,
        lane: Lane,
        target: PreTrainedModel,
        drafter: Drafter,
        settings: AnswerSettings,
        random: SeededRandom,
        caches: KVCaches,
        length: int,
        record: bool = True,
    ) -> None:
        self.lane, self.caches, self.drafter = lane, caches, drafter
        self.emitted: list[int] = []
        self.finished: FinishReason | None = None
        self._target, self._settings, self._random = target, settings, random
        self._length, self._record = length, record
        self._sampler = RejectionSampler(lane.config.temperature, random, settings.warpers)
        self._tree: DraftTree | None = None
        self._drafter_ids: Sequence[int] = ()  # of the nodes of the verified tree in the drafter's tree
        self._pruned: tuple[Pruned, ...] = ()
        self._draft_seconds = 0.0

    @property
    def root(self) -> int:
        """The last emitted token: the target chose it, and neither cache holds it yet."""
        return self.emitted[-1]

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.lane.config.max_new_tokens - len(self.emitted)

    @torch.inference_mode()
    def prefill(self) -> Prefill:
        """Read the prompt with both models; the target's first token becomes the root.

        Raises:
            ValueError: the prompt has been read, or the target's logits are no numbers.
        """
        if self.emitted:
            raise ValueError("this request has read its prompt: make a new one for another answer")
        prompt, config, drafter = self.lane.prompt, self.lane.config, self.drafter
        device = prompt.input_ids.device
        started = self._now(device)
        rows = 1 if isinstance(drafter, NoDraft) else config.nodes + 1
        if self.caches.pools.target.exact:
            rows = min(rows, EXACT_ROWS)
        capacity = config.target_slots(self._length)
        self.engine = self.caches.target(capacity, drafter.state_layers, rows > 1)
        output = self.engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
        self.engine.warm_up(rows, config.max_new_tokens + config.nodes, self._reduction)
        logits, processing = output.logits, self._settings.processing
        if processing:
            logits = processing(logits[None], [()])[0]
        first = self._sampler.first_token(logits)
        read = self._now(device)
        processing.check(output.logits, "target")
        opening = self._now(device)
        drafter.begin(prompt, output, self.caches)
        draft_seconds = self._now(device) - opening
        if isinstance(drafter, TreeDrafter) and prompt.draft_prompt is not None:
            draft_seconds += prompt.draft_prompt.vision_seconds
        self._emit([first])
        return Prefill(
            prompt_tokens=prompt.length,
            first_token=first,
            first_margin=round(float(margins(logits[None])[0]), 7),
            vision_seconds=prompt.vision_seconds,
            target_seconds=read - started,
            draft_seconds=draft_seconds,
            reused_tokens=output.reused,
            image_tokens=int(slots_of(self._target.config, prompt.input_ids).sum()),
            finished=self.finished,
        )

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        """Let the drafter grow a tree below the root; no deeper than tokens may still be emitted.

        Where passes are exact, its first branch alone is verified, and returned. A row's bits depend on its slot, and
        only along that branch a node has the slot that it would have without a tree.

        Raises:
            ValueError: not the moment for it; a rule, or a drafter of the caller's own, that breaks its limits or runs
                the engine that verifies; the draft's logits are no numbers.
        """
        self._check_running()
        if self._tree is not None:
            raise ValueError("the last proposed tree is not verified: verify comes first")
        started = self._now()
        drafter, depth = self.drafter, min(self.lane.config.depth, self.room - 1)
        own = self.lane.drafter is not None  # the caller's; the package's keep the limits, as tests hold
        try:
            tree, pruned = drafter.propose(self.root, depth), drafter.pruned
        except (TypeError, ValueError) as error:
            if not own:
                raise
            raise ValueError(f"the drafter {drafter.name} proposes no tree: {error}") from error
        self._draft_seconds = self._now() - started
        if own:
            vocabulary = self._target.config.get_text_config().vocab_size
            tree = check_proposal(drafter.name, tree, self.root, depth, self.lane.config.nodes, vocabulary)
            pruned = ()
            if self.engine.cache.length != self.lane.prompt.length + len(self.emitted) - 1:
                raise ValueError(f"the drafter {drafter.name} ran the engine that verifies: give it one by Engine.of")
        self._drafter_ids = range(len(tree))
        if self.caches.pools.target.exact:
            self._drafter_ids = tree.first_branch()[:EXACT_ROWS]
            tree, pruned = tree.subtree(self._drafter_ids), ()
        self._tree, self._pruned = tree, pruned
        return tree

    @torch.inference_mode()
    def verify(self) -> StepTrace:
        """Verify the proposed tree in one target pass, and keep the accepted branch in both caches.

        Each node attends to the context and to its own ancestors. Greedy, the longest branch that the target agrees
        with is accepted. The target's bonus token after it becomes the new root, which is in neither cache.

        Raises:
            ValueError: not the moment for it, or the target's logits are no numbers.
        """
        self._check_running()
        tree = self._tree
        if tree is None:
            raise ValueError("no tree is proposed: propose comes first")
        recorder = DrawRecorder(self._random) if self._record else None
        started = self._now()
        base = self.engine.cache.length
        processing, draft_probs = self._settings.processing, self.drafter.draft_probs
        output = self.engine.forward(Batch.of_tree(tree, base), self._reduction)
        logits = processing.of_tree(tree, output.logits) if processing else output.logits
        if draft_probs is not None and self.caches.pools.target.exact:
            draft_probs = draft_probs[list(self._drafter_ids)]
        verification, probs = self._sampler.verify(tree, logits, draft_probs, recorder, output.reduced)
        verified = self._now()
        path = verification.path
        emitted = self._emit([*(tree.tokens[node] for node in verification.accepted), verification.bonus_token])
        states = self.engine.commit(base, path)
        self.drafter.commit([self._drafter_ids[node] for node in path], states)
        committed = self._now()
        processing.check(output.logits, "target", output.reduced)  # an overflow or a damaged row may come late
        self._tree = None
        return StepTrace(
            tree=tree,
            verification=verification,
            emitted=emitted,
            target=target_view(tree, logits, probs) if self._record else None,
            seconds=StepSeconds(draft=self._draft_seconds, verify=verified - started, keep=committed - verified),
            pruned=self._pruned,
            draws=recorder.draws() if recorder else (),
            finished=self.finished,
        )

    @property
    def _reduction(self) -> GreedyChoices | None:
        """What verification needs of a pass's logits, unless it needs them all."""
        return None if self._settings.processing else self._sampler.reduction

    def _now(self, device: torch.device | None = None) -> float:
        """Return seconds of a clock that pauses while passes are captured.

        Args:
            device: whose work is waited for. Without it the host has just read what the device computed last, within a
                step. A commit alone leaves two copies to the device, which the next pass follows.
        """
        return (time.perf_counter() if device is None else now(device)) - self.caches.pools.capture_seconds

    def _check_running(self) -> None:
        """Refuse a phase of an answer that has not begun, or has ended.

        Raises:
            ValueError: as it says.
        """
        if not self.emitted:
            raise ValueError("no prompt is read: prefill comes first")
        if self.finished is not None:
            raise ValueError(f"the answer has ended ({self.finished}): make a new request for another one")

    def _emit(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Emit tokens up to the end of the answer, and set why it is finished if it is."""
        ends, stops = self._settings.eos_token_ids, self._settings.stops
        emitted = clip(tokens, self.room, ends)
        end = stops.end(emitted) if stops else None
        emitted = emitted[:end]
        self.emitted += emitted
        self._settings.processing.append(emitted)
        if emitted[-1] in ends:
            self.finished = "eos"
        elif end is not None:
            self.finished = "stop_string"
        elif self.room == 0:
            self.finished = "length"
        return emitted


def clip(tokens: Sequence[int], room: int, eos: frozenset[int]) -> tuple[int, ...]:
    """Cut tokens at the end of the answer, to ``room`` at most: the stop rule of every lane."""
    end = next((number for number, token in enumerate(tokens[:room], start=1) if token in eos), room)
    return tuple(tokens[:end])


def stream(request: Request) -> Generator[Event]:
    """Decode one answer: a :class:`Prefill`, then a :class:`StepTrace` per target pass. Close it to stop early.

    Lossless: the emitted tokens are those of the target alone, or with a temperature, have its distribution.

    Raises:
        ValueError: as :meth:`Request.prefill` and :meth:`Request.propose`; or caches that are in use.
    """
    with request.caches.in_use():
        yield request.prefill()
        while request.finished is None:
            request.propose()
            yield request.verify()


def run_lanes(requests: Sequence[Request]) -> Generator[RaceEvent]:
    """Run requests in turn on one device: always the one with the earliest clock, so that texts grow in proportion.

    Two lanes that computed at once would disturb each other's timing; a clock per lane that counts only that
    lane's compute makes taking turns invisible.

    Raises:
        ValueError: two lanes of one name.
    """
    names = [request.lane.name for request in requests]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two lanes of one race are called {double}: give each a name of its own")
    clocks = dict.fromkeys(names, 0.0)
    running = {request.lane.name: (request, stream(request)) for request in requests}
    with ExitStack() as closed:  # a race that is stopped, or in which a lane fails, lets go of every lane's caches
        for _, events in running.values():
            closed.enter_context(closing(events))
        while running:
            name = min(running, key=clocks.__getitem__)
            request, events = running[name]
            item = next(events)
            clocks[name] += item.seconds.total if isinstance(item, StepTrace) else item.total
            if item.finished is not None:
                events.close()
                del running[name]
            yield RaceEvent(request.lane, item, clocks[name])
