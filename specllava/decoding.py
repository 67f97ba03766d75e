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
from specllava.costs import Experience
from specllava.drafters import DraftSession
from specllava.drafters.lookup import LookupSession
from specllava.drafters.model import ModelSession
from specllava.drafters.nobody import Nobody
from specllava.judges import judge_of
from specllava.models.bundle import Bundle
from specllava.models.engine import Engine
from specllava.models.memory import Memory, draft_columns, target_columns
from specllava.models.prompt import Prompt, check_room
from specllava.models.timing import now
from specllava.sampling import Chance, SeededChance
from specllava.trace import SCHEMA_VERSION, DecodeTrace, FinishReason, Prefill, StepSeconds, StepTrace
from specllava.tree import DraftTree
from specllava.verify import clip, target_view

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
def stream(bundle: Bundle, prompt: Prompt, config: DecodingConfig, memory: Memory | None = None) -> Generator[Event]:
    """Decode one answer: a :class:`Prefill`, then a :class:`StepTrace` per target pass.

    Lossless: the emitted tokens are those of the target alone, or with a temperature, have its distribution. Close
    the generator to stop early.

    Args:
        memory: caches of earlier answers, for this one to go on with; what the prompt shares with them is not read
            again. Without it the answer stands alone.

    Raises:
        ValueError: prompt and limit do not fit the context, no draft to draft with, or a memory in use.
    """
    check_room(bundle, prompt.length, config.max_new_tokens, prompt.turn)
    alone = prompt.length + config.max_new_tokens
    held, longest = (Memory(), alone) if memory is None else (memory, bundle.context)
    with held.lent():
        yield from _decode(bundle, prompt, config, held, longest)


def _decode(bundle: Bundle, prompt: Prompt, config: DecodingConfig, memory: Memory, longest: int) -> Generator[Event]:
    """The loop itself, in caches for at least ``longest`` tokens of prompt and answer."""
    device, eos = bundle.device, bundle.eos_token_ids
    chance = SeededChance(config.seed)
    judge = judge_of(config, chance)
    learns = config.rule == "cost-aware" and config.drafter == "model"
    known = bundle.experience(config.temperature > 0) if learns else None  # measures costs: outside the clock

    # 1. Both models read the prompt; the target's first token becomes the root.
    started = now(device)
    target = memory.engine(bundle.target, target_columns(longest, config))
    reading = target.prefill(prompt.input_ids, prompt.features, prompt.pictures)
    root = judge.first(reading.logits)
    read = now(device)
    session = _open(bundle, prompt, config, memory, longest, known, chance)
    drafted = now(device)
    eyes = prompt.for_draft.vision_seconds if prompt.for_draft and config.drafter == "model" else 0.0
    best = reading.logits.topk(2).values.double()
    yield Prefill(
        prompt_tokens=prompt.length,
        first_token=root,
        first_margin=round(float(best[0] - best[1]), 7),
        vision_seconds=prompt.vision_seconds,
        target_seconds=read - started,
        draft_seconds=drafted - read + eyes,
        reused_tokens=reading.reused,
    )
    room = config.max_new_tokens - 1
    ended = root in eos
    while room > 0 and not ended:
        # 2. The draft grows a tree below the root; deeper than the room that is left would be wasted.
        started = now(device)
        tree = session.propose(root, min(config.depth, room - 1))
        grown = now(device)
        # 3. The target scores every node in one pass: each sees the context and its own ancestors. The longest
        #    branch that it agrees with stands, and its own token behind it.
        base = target.cache.length
        logits = _score(target, tree)  # [nodes, vocab]
        verdict = judge.verify(tree, logits, session.drawn)
        scored = now(device)
        tokens = [*(tree.tokens[node] for node in verdict.accepted), verdict.next_token]
        emitted = clip(tokens, room, eos)
        # 4. Both caches keep that branch and forget the rest; the new root is in neither.
        target.cache.keep(base, verdict.path)
        session.keep(verdict.path)
        kept = now(device)
        if known:
            known.timed(draft=grown - started, check=kept - grown)
        yield StepTrace(
            tree=tree,
            verification=verdict,
            emitted=emitted,
            target=target_view(tree, logits, judge.probs(logits)),
            seconds=StepSeconds(draft=grown - started, verify=scored - grown, rest=kept - scored),
            pruned=session.pruned,
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
    given = lane.prompt.given
    used = {first.first_token, *given}.union(
        *(
            {*s.tree.tokens, *s.target.choices, s.verification.next_token, *(guess.token for guess in s.pruned)}
            for s in trace_steps
        )
    )
    return DecodeTrace(
        schema_version=SCHEMA_VERSION,
        lane=lane.name,
        setting=bundle.setting,
        config=lane.config,
        prompt=lane.prompt.text,
        image=", ".join("{} x {} pixels".format(*size) for size in lane.prompt.image_sizes) or None,
        prefill=first,
        steps=trace_steps,
        finish_reason=_finish_reason(bundle, lane, ids),
        text=bundle.decode([*given, *ids]),
        texts={token: bundle.text_of(token) for token in sorted(used)},
        eos_token_ids=tuple(sorted(bundle.eos_token_ids)),
        turn=lane.prompt.turn,
        given=given,
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


def _open(
    bundle: Bundle,
    prompt: Prompt,
    config: DecodingConfig,
    memory: Memory,
    longest: int,
    known: Experience | None,
    chance: Chance,
) -> DraftSession:
    if config.drafter == "none":
        return Nobody()
    if config.drafter == "prompt-lookup":
        return LookupSession(prompt.input_ids[0].tolist(), config, frozenset({bundle.target.config.image_token_id}))
    if bundle.draft is None:
        raise ValueError(f'the pair {bundle.name} has no draft: use drafter "prompt-lookup" or "none"')
    widest = draft_columns(longest, config)
    if prompt.for_draft is not None:  # a tower of the draft's own may take more slots for a picture
        widest += max(0, prompt.for_draft.length - prompt.length)
    return ModelSession(memory.engine(bundle.draft, widest), prompt, config, chance, known)


def _finish_reason(bundle: Bundle, lane: Lane, ids: Sequence[int]) -> FinishReason:
    if ids[-1] in bundle.eos_token_ids:
        return "eos"
    return "length" if len(ids) >= lane.config.max_new_tokens else "stopped"
