"""The decode loop. There is one: a request that is prefilled and then proposes and verifies until it is finished.

Target-only decoding is the same loop with a drafter that proposes nothing, so both lanes of a comparison share
engine, clock, counter and stop rule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from specllava.core.branch import first_branch
from specllava.core.growth.rule import GrowthRule
from specllava.core.trace import (
    MAX_NAME,
    SCHEMA_VERSION,
    DecodeTrace,
    FinishReason,
    Prefill,
    RunInfo,
    StepSeconds,
    StepTrace,
    tokens_used,
)
from specllava.core.tree import DraftTree, Pruned
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession, NoDraft, check_proposal, check_pruned
from specllava.lane import Lane, LaneFacts
from specllava.models.checkpoints.tokens import Detokenizer
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.padded_passes import EXACT_ROWS
from specllava.runtime.passes import LogitsReduction, PassInput
from specllava.runtime.timing import now, now_read
from specllava.runtime.vision import slots_of
from specllava.verification.answer_settings import AnswerSettings
from specllava.verification.sampling import DrawRecorder, SeededRandom
from specllava.verification.verifier import build_verifier, margins, target_view

Event = Prefill | StepTrace


@dataclass(frozen=True, slots=True)
class RaceEvent:
    """What just happened in a race: names and numbers, so that another process may collect the traces.

    Args:
        lane: facts of the lane that moved.
        item: its prefill or step; ``item.finished`` is the reason if it was the last.
        clock: seconds on that lane's own clock, which counts only that lane's compute.
        draft_pass_tokens: tokens of each pass that the draft made for the step; none of a prefill.
    """

    lane: LaneFacts
    item: Event
    clock: float
    draft_pass_tokens: tuple[int, ...] = ()


class Request:
    """One answer in the making: ``prefill``, then ``propose`` and ``verify`` in turn until it is ``finished``.

    A scheduler of several requests may pause each between any two phases.

    Args:
        settings: what else the checkpoint asks of the answer.
        rule: how trees grow, for a drafter that grows them.
        caches: KV caches to go on with; what the prompt shares with them is not read again.
        length: tokens of prompt and answer that the caches are for.
        record: note what the target thought of every node and what was drawn, for a trace that explains itself; outside
            every clock.
    """

    def __init__(
        self,
        lane: Lane,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        eos_token_ids: frozenset[int],
        settings: AnswerSettings,
        drafter: Drafter,
        rule: GrowthRule | None,
        caches: KVCaches,
        length: int,
        record: bool = True,
    ) -> None:
        self.lane, self.caches = lane, caches
        self.emitted: list[int] = []
        self.finished: FinishReason | None = None
        self._target, self._draft, self._eos, self._settings = target, draft, eos_token_ids, settings
        self._drafter, self._rule = drafter, rule
        self._length, self._record = length, record
        self._random = SeededRandom(lane.config.seed)
        self._verifier = build_verifier(lane.config, self._random, settings.warpers)
        self._session: DraftSession | None = None
        self._tree: DraftTree | None = None
        self._nodes: Sequence[int] = ()  # of the drafter's tree, by node of the verified one
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

    @property
    def draft_pass_tokens(self) -> tuple[int, ...]:
        """Tokens of each pass that the draft made for the last tree."""
        return () if self._session is None else self._session.pass_tokens

    @torch.inference_mode()
    def prefill(self) -> Prefill:
        """Read the prompt with both models; the target's first token becomes the root.

        Raises:
            ValueError: the prompt has been read, the target's logits are no numbers, or there is no draft to draft
                with.
        """
        if self._session is not None:
            raise ValueError("this request has read its prompt: make a new one for another answer")
        prompt, config, state_layers = self.lane.prompt, self.lane.config, self._drafter.state_layers
        device = prompt.input_ids.device
        started = self._now(device)
        rows = 1 if isinstance(self._drafter, NoDraft) else config.nodes + 1
        self._engine = self.caches.engine(self._target, config.target_columns(self._length), state_layers, rows)
        output = self._engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
        self._engine.prepare(rows, config.max_new_tokens + config.nodes, self._reduction)
        logits, processing = output.logits, self._settings.processing
        if processing:
            logits = processing(logits[None], [()])[0]
        first = self._verifier.first_token(logits)
        read = self._now(device)
        processing.check(output.logits, "target")
        models, answer = (self._target, self._draft), (self._random, self._settings)
        context = DraftContext(prompt, config, self._rule, *answer, *models, self.caches, self._length, output)
        opening = self._now(device)
        self._session = self._drafter.open(context)
        opened = self._now(device)
        own_vision = prompt.draft_prompt.vision_seconds if prompt.draft_prompt and self._drafter.needs_draft else 0.0
        margin = float(margins(logits[None])[0])
        self._emit([first])
        return Prefill(
            prompt_tokens=prompt.length,
            first_token=first,
            first_margin=round(margin, 7),
            vision_seconds=prompt.vision_seconds,
            target_seconds=read - started,
            draft_seconds=opened - opening + own_vision,
            reused_tokens=output.reused,
            image_tokens=int(slots_of(self._target.config, prompt.input_ids).sum()),
            finished=self.finished,
        )

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        """Let the drafter grow a tree below the root; no deeper than tokens may still be emitted.

        Where passes are exact, its first branch alone is verified, and returned.

        Raises:
            ValueError: not the moment for it; a rule, or a drafter of the caller's own, that breaks its limits; the
                draft's logits are no numbers.
        """
        session = self._running()
        if self._tree is not None:
            raise ValueError("the last proposed tree is not verified: verify comes first")
        started = self._now()
        depth = min(self.lane.config.depth, self.room - 1)
        own = self.lane.drafter is not None  # the caller's; the package's keep the limits, as tests hold
        try:
            tree, pruned = session.propose(self.root, depth), session.pruned
        except (TypeError, ValueError) as error:
            if not own:
                raise
            raise ValueError(f"the drafter {self._drafter.name} proposes no tree: {error}") from error
        self._draft_seconds = self._now() - started
        if own:
            name, vocabulary = self._drafter.name, self._target.config.get_text_config().vocab_size
            tree = check_proposal(name, tree, self.root, depth, self.lane.config.nodes, vocabulary)
            pruned = check_pruned(name, pruned, len(tree), vocabulary)
        self._nodes = range(len(tree))
        if self.caches.exact:
            branch = first_branch(tree, pruned, EXACT_ROWS - 1)
            self._nodes, tree, pruned = branch.nodes, branch.tree, branch.pruned
        self._tree, self._pruned = tree, pruned
        return tree

    @torch.inference_mode()
    def verify(self) -> StepTrace:
        """Verify the proposed tree in one target pass, and keep the accepted branch in both caches.

        Each node attends to the context and to its own ancestors. The longest branch that the target agrees with is
        accepted. The target's bonus token after it becomes the new root, which is in neither cache.

        Raises:
            ValueError: not the moment for it, or the target's logits are no numbers.
        """
        session, tree = self._running(), self._tree
        if tree is None:
            raise ValueError("no tree is proposed: propose comes first")
        recorder = DrawRecorder(self._random) if self._record else None
        started = self._now()
        base = self._engine.cache.length
        processing = self._settings.processing
        output = self._engine.forward(PassInput.of_tree(tree, base), self._reduction)
        logits, numbers = output.logits, output.numbers
        if processing:
            logits = processing.of_tree(tree, logits)
        draft_probs = session.draft_probs
        if draft_probs is not None and len(tree) < len(draft_probs):
            draft_probs = draft_probs[list(self._nodes)]
        verification, probs = self._verifier.verify(tree, logits, draft_probs, recorder, numbers)
        verified = self._now()
        path = verification.path
        emitted = self._emit([*(tree.tokens[node] for node in verification.accepted), verification.bonus_token])
        self._engine.keep(base, path)
        session.keep([self._nodes[node] for node in path], self._engine.kept_states(base))
        kept = self._now()
        processing.check(output.logits, "target", numbers)  # here too: an overflow or a damaged row may come late
        seconds = StepSeconds(draft=self._draft_seconds, verify=verified - started, keep=kept - verified)
        session.observe(seconds.draft, seconds.verify + seconds.keep)
        self._tree = None
        return StepTrace(
            tree=tree,
            verification=verification,
            emitted=emitted,
            target=target_view(tree, logits, probs) if self._record else None,
            seconds=seconds,
            pruned=self._pruned,
            draws=recorder.draws() if recorder else (),
            finished=self.finished,
        )

    @property
    def _reduction(self) -> LogitsReduction | None:
        """What verification has to know of a pass's logits, unless it needs them all."""
        return None if self._settings.processing else self._verifier.reduction

    def _now(self, device: torch.device | None = None) -> float:
        """Return seconds of a clock that pauses while passes are captured.

        Args:
            device: whose work is waited for; without it the host has just read what was computed last.
        """
        return (now_read() if device is None else now(device)) - self.caches.capture_seconds

    def _running(self) -> DraftSession:
        """Return the session of an unfinished answer.

        Raises:
            ValueError: it has not begun, or has ended.
        """
        if self._session is None:
            raise ValueError("no prompt is read: prefill comes first")
        if self.finished is not None:
            raise ValueError(f"the answer has ended ({self.finished}): make a new request for another one")
        return self._session

    def _emit(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Emit tokens up to the end of the answer, and set why it is finished if it is."""
        emitted, stops = clip(tokens, self.room, self._eos), self._settings.stops
        end = stops.end(emitted) if stops else None
        emitted = emitted[:end]
        self.emitted += emitted
        self._settings.processing.append(emitted)
        if emitted[-1] in self._eos:
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


def race(requests: Sequence[Request]) -> Generator[RaceEvent]:
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
            yield RaceEvent(request.lane.facts, item, clocks[name], request.draft_pass_tokens)


def collect(
    lane: LaneFacts, events: Iterable[Event], info: RunInfo, detokenizer: Detokenizer, eos_token_ids: frozenset[int]
) -> DecodeTrace:
    """Collect the trace of a lane from its events, finished or not.

    Raises:
        ValueError: events that are no prefill and then steps.
    """
    prefill, *rest = events
    steps = tuple(step for step in rest if isinstance(step, StepTrace))
    if not isinstance(prefill, Prefill) or len(steps) != len(rest):
        raise ValueError("a run is a prefill and then steps")
    prefix = lane.forced_prefix
    ids = [prefill.first_token, *(token for step in steps for token in step.emitted)]
    return DecodeTrace(
        schema_version=SCHEMA_VERSION,
        lane=lane.name,
        setting=info,
        config=lane.config,
        prompt=lane.text,
        image=", ".join("{} x {} pixels".format(*size) for size in lane.image_sizes) or None,
        prefill=prefill,
        steps=steps,
        finish_reason=(steps[-1] if steps else prefill).finished or "stopped",
        text=detokenizer.decode([*prefix, *ids]),
        texts={token: detokenizer.text_of(token) for token in sorted({*tokens_used(prefill, prefix, steps)})},
        eos_token_ids=tuple(sorted(eos_token_ids)),
        turn=lane.turn,
        forced_prefix=prefix,
        rule=None if lane.rule is None else lane.rule[:MAX_NAME],
        drafter=None if lane.drafter is None else lane.drafter[:MAX_NAME],
    )
