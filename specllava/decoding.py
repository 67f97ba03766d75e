"""The decode loop. There is one: a generator of events. Everything else consumes it.

Target-only decoding is the same loop with a drafter that proposes nothing, so both lanes of a comparison share
engine, clock, counter and stop rule.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.drafters import DraftSession
from specllava.drafters.model import ModelSession
from specllava.drafters.nobody import Nobody
from specllava.models.bundle import Bundle
from specllava.models.engine import Engine
from specllava.models.prompt import Prompt, now
from specllava.trace import SCHEMA_VERSION, DecodeTrace, FinishReason, Prefill, StepSeconds, StepTrace
from specllava.tree import DraftTree
from specllava.verify import clip, target_view, verify_greedy

Event = Prefill | StepTrace


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to answer a prompt: what a race runs and a trace records."""

    name: str
    config: DecodingConfig
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class RaceEvent:
    """What just happened in a race.

    Args:
        run: the lane that moved.
        item: its prefill or step.
        clock: seconds on that lane's own clock, which counts only that lane's compute.
        finished: the lane has nothing left to say.
    """

    run: Lane
    item: Event
    clock: float
    finished: bool

    @property
    def lane(self) -> str:
        return self.run.name


@torch.inference_mode()
def stream(bundle: Bundle, prompt: Prompt, config: DecodingConfig) -> Generator[Event]:
    """Decode one answer: a :class:`Prefill`, then a :class:`StepTrace` per target pass.

    Greedy and lossless: the emitted tokens are those of the target alone. Close the generator to stop early.

    Raises:
        ValueError: prompt and limit do not fit the context, or no draft to draft with.
    """
    _check_room(bundle, prompt, config)
    device, eos = bundle.device, bundle.eos_token_ids
    capacity = prompt.length + config.max_new_tokens + config.nodes + 1

    # 1. Both models read the prompt; the target's first token becomes the root.
    started = now(device)
    target = Engine(bundle.target, capacity)
    logits = target.prefill(prompt.input_ids, prompt.features)
    root = int(logits.argmax())
    read = now(device)
    session = _open(bundle, prompt, config, capacity)
    drafted = now(device)
    best = logits.topk(2).values.double()
    yield Prefill(
        prompt_tokens=prompt.length,
        first_token=root,
        first_margin=round(float(best[0] - best[1]), 7),
        vision_seconds=prompt.vision_seconds,
        target_seconds=read - started,
        draft_seconds=drafted - read,
    )
    room = config.max_new_tokens - 1
    ended = root in eos
    while room > 0 and not ended:
        # 2. The draft grows a tree below the root; deeper than the room that is left would be wasted.
        started = now(device)
        tree = session.propose(root, min(config.depth, room - 1), config)
        grown = now(device)
        # 3. The target scores every node in one pass: each sees the context and its own ancestors.
        base = target.cache.length
        logits = _score(target, tree)  # [nodes, vocab]
        choices = logits.argmax(-1).tolist()
        scored = now(device)
        # 4. The longest branch that the target agrees with, and the target's own token behind it.
        verdict = verify_greedy(tree, choices)
        tokens = [*(tree.tokens[node] for node in verdict.accepted), verdict.next_token]
        emitted = clip(tokens, room, eos)
        # 5. Both caches keep that branch and forget the rest; the new root is in neither.
        target.cache.keep(base, verdict.path)
        session.keep(verdict.path)
        kept = now(device)
        yield StepTrace(
            tree=tree,
            verification=verdict,
            emitted=emitted,
            target=target_view(tree, logits),
            seconds=StepSeconds(draft=grown - started, verify=scored - grown, rest=kept - scored),
        )
        root = emitted[-1]
        room -= len(emitted)
        ended = root in eos


def collect(bundle: Bundle, lane: Lane, events: Iterable[Event]) -> DecodeTrace:
    """The trace of a lane from its events, finished or not."""
    first, *steps = events
    if not isinstance(first, Prefill) or not all(isinstance(step, StepTrace) for step in steps):
        raise ValueError("a run is a prefill and then steps")
    trace_steps = tuple(step for step in steps if isinstance(step, StepTrace))
    ids = [first.first_token, *(token for step in trace_steps for token in step.emitted)]
    used = {first.first_token}.union(
        *({*s.tree.tokens, *s.target.choices, s.verification.next_token} for s in trace_steps)
    )
    return DecodeTrace(
        schema_version=SCHEMA_VERSION,
        lane=lane.name,
        setting=bundle.setting,
        config=lane.config,
        prompt=lane.prompt.text,
        image=None if lane.prompt.image_size is None else "{} x {} pixels".format(*lane.prompt.image_size),
        prefill=first,
        steps=trace_steps,
        finish_reason=_finish_reason(bundle, lane, ids),
        text=bundle.decode(ids),
        texts={token: bundle.text_of(token) for token in sorted(used)},
        eos_token_ids=tuple(sorted(bundle.eos_token_ids)),
    )


def race(bundle: Bundle, lanes: Sequence[Lane]) -> Generator[RaceEvent]:
    """Run lanes in turn on one device: always the lane whose clock is behind, so that texts grow in true proportion.

    Two lanes that computed at once would disturb each other's timing; a clock per lane that counts only that
    lane's compute makes taking turns invisible.
    """
    clocks = {lane.name: 0.0 for lane in lanes}
    running = {lane.name: (lane, stream(bundle, lane.prompt, lane.config)) for lane in lanes}
    emitted = {lane.name: 0 for lane in lanes}
    while running:
        name = min(running, key=clocks.__getitem__)
        lane, events = running[name]
        item = next(events)
        clocks[name] += item.total if isinstance(item, Prefill) else item.seconds.total
        tokens = (item.first_token,) if isinstance(item, Prefill) else item.emitted
        emitted[name] += len(tokens)
        finished = tokens[-1] in bundle.eos_token_ids or emitted[name] >= lane.config.max_new_tokens
        if finished:
            events.close()
            del running[name]
        yield RaceEvent(lane, item, clocks[name], finished)


def _score(target: Engine, tree: DraftTree) -> Tensor:
    """Logits ``[nodes, vocab]`` of a whole tree in one pass: a node sees the context and its own ancestors."""
    if len(tree) == 1:
        return target.forward(tree.tokens)
    base = target.cache.length
    visible = np.ones((len(tree), base + len(tree)), dtype=np.bool_)
    visible[:, base:] = tree.ancestor_mask()
    return target.forward(tree.tokens, visible, [base + depth for depth in tree.depths()])


def _open(bundle: Bundle, prompt: Prompt, config: DecodingConfig, capacity: int) -> DraftSession:
    if config.drafter == "none":
        return Nobody()
    if bundle.draft is None:
        raise ValueError(f'the pair {bundle.name} has no draft: use drafter "none"')
    widest = capacity + config.depth * config.width
    return ModelSession(bundle.draft, prompt, widest)


def _check_room(bundle: Bundle, prompt: Prompt, config: DecodingConfig) -> None:
    wanted = prompt.length + config.max_new_tokens
    if wanted > bundle.context:
        raise ValueError(
            f"{prompt.length} prompt tokens and {config.max_new_tokens} new ones do not fit the context of"
            f" {bundle.context}: shorten the prompt or ask for {max(0, bundle.context - prompt.length)} at most"
        )


def _finish_reason(bundle: Bundle, lane: Lane, ids: Sequence[int]) -> FinishReason:
    if ids[-1] in bundle.eos_token_ids:
        return "eos"
    return "length" if len(ids) >= lane.config.max_new_tokens else "stopped"
