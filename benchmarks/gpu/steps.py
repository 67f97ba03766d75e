"""Steps of a lane: what they take, how far they are from their passes alone, and what they bring at a designed τ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile

from benchmarks.gpu.lanes import ALONE, LANES, LONGEST, PICTURE, QUESTION
from benchmarks.gpu.oracle import OracleDrafter
from benchmarks.gpu.watch import Alone, Watch
from specllava.core.trace import StepTrace
from specllava.decoding import Request, stream
from specllava.drafters.build import build_drafter
from specllava.drafters.drafter import Drafter
from specllava.lane import Lane
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.kv_caches import KVCaches

ANSWER, BEYOND = 96, 16  # tokens of an answer, and those after it that its last trees may be grafted with
ROUNDS = 6  # answers at most, until enough steps are steady


@dataclass(frozen=True, slots=True)
class Step:
    """A lane's steps: medians of seconds, means of the tree.

    Args:
        way: how its passes ran, in words.
        count: steady steps, in which nothing was captured or ran for the first time.
        overhead: of a step over its passes alone; ``None`` where passes are not padded.
        level: seconds of one pass of the draft after the root's, by itself.
        tau: tokens that a step emitted.
        captured, called: different passes that are replayed, and that come again and are not.
    """

    way: str
    count: int
    seconds: float
    overhead: float | None
    level: float | None
    nodes: float
    levels: float
    tau: float
    captured: int
    called: int


@dataclass(frozen=True, slots=True)
class Known:
    """Steps that a known answer was grafted to.

    Args:
        wanted: τ that acceptance was drawn for.
        same: tokens of the answers that are the target's own, up to the first other.
        tokens: of the answers, as far as they were given.
    """

    wanted: float
    step: Step
    same: int
    tokens: int


def answer_of(pair: Pair, way: PassesName) -> list[int]:
    """Return the answer of the target alone."""
    request = _request(pair.running(way), ALONE, None, None)
    for _ in stream(request):
        if len(request.emitted) >= ANSWER + BEYOND:
            break
    return request.emitted


def steps_of(pair: Pair, lane: str, way: PassesName, wanted: int) -> Step:
    """Return the steps of a lane, as its draft guesses."""
    return _timed(pair, lane, way, wanted, None, ())[0]


def known_steps(pair: Pair, lane: str, way: PassesName, wanted: int, answer: Sequence[int], tau: float) -> Known:
    """Return the steps of a lane whose guesses are accepted by design."""
    drafter = OracleDrafter(build_drafter("model", pair.draft), answer, tau)
    step, answers = _timed(pair, lane, way, wanted, drafter, answer)
    same = sum(common(answer, one) for one in answers)
    return Known(tau, step, same, sum(min(len(one), len(answer)) for one in answers))


def _timed(
    pair: Pair, lane: str, way: PassesName, wanted: int, drafter: Drafter | None, answer: Sequence[int]
) -> tuple[Step, list[list[int]]]:
    """Return the steady steps of an answer that is given until there are enough, and the tokens of each time.

    Args:
        answer: that is known, if any; an answer that leaves it is given up.
    """
    answers, taken = list[list[int]](), list[StepTrace]()
    with closing(Watch(pair, way)) as watch:
        caches = KVCaches(watch.engines)
        while len(answers) < ROUNDS and len(taken) < wanted:
            request = _request(pair, lane, drafter, caches)
            answers.append(request.emitted)
            taken += _steady(watch, request, answer, wanted - len(taken))
        if not taken:
            raise ValueError(f"no step of {ROUNDS} answers was steady")
        return _summary(taken, watch.passes_alone(caches), watch), answers


def _steady(watch: Watch, request: Request, answer: Sequence[int], wanted: int) -> list[StepTrace]:
    """Return the steady steps of one answer, ``wanted`` at most."""
    taken = list[StepTrace]()
    with closing(stream(request)) as events:
        for event in events:
            left = bool(answer) and common(answer, request.emitted) < min(len(answer), len(request.emitted))
            counts = watch.end_step(isinstance(event, StepTrace) and not left)
            if counts and isinstance(event, StepTrace):
                taken.append(event)
            if left or len(taken) == wanted or len(request.emitted) >= ANSWER:
                break
    return taken


def _request(pair: Pair, lane: str, drafter: Drafter | None, caches: KVCaches | None) -> Request:
    prompt = pair.prompt(PICTURE, QUESTION, LONGEST)
    return pair.request(Lane(lane, LANES[lane], prompt, drafter=drafter), caches, record=False)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens from the start that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _summary(taken: Sequence[StepTrace], alone: Alone | None, watch: Watch) -> Step:
    seconds = [step.seconds.total for step in taken]
    over = None if alone is None else [one / two - 1 for one, two in zip(seconds, alone.steps, strict=True)]
    return Step(
        way=watch.way,
        count=len(taken),
        seconds=statistics.median(seconds),
        overhead=None if over is None else statistics.median(over),
        level=None if alone is None else alone.level,
        nodes=statistics.mean(step.tree.drafted for step in taken),
        levels=statistics.mean(max(step.tree.depths()) for step in taken),
        tau=statistics.mean(len(step.emitted) for step in taken),
        captured=watch.captured,
        called=watch.called,
    )
