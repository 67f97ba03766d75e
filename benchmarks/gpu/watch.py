"""Engines whose passes are noted, so that a step's time may be held against that of its passes alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.kv_caches import AnyEngine, EnginePool, KVCaches
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine
from specllava.runtime.padded_passes import PassRunner
from specllava.runtime.timing import now

FIRST = 2  # steps of an eager lane that warm it up
LATEST = 3  # time that a pass comes by which it is captured, if ever
ROUNDS, AGAIN = 5, 10  # a pass alone: rounds, and runs in each without a wait between them


@dataclass(slots=True)
class Runs:
    """Runs of one pass.

    Args:
        compute: calls it.
        times: that it ran.
        replayed: whether it was not called the last time.
    """

    compute: Callable[[], None]
    times: int = 0
    replayed: bool = False


class Watched:
    """Runner that notes which passes run, and can run each again.

    Args:
        noted: passes of all runners in their order, which it adds to.
        fresh: those among them that were called and may be captured yet, which it adds to.
    """

    def __init__(self, runner: PassRunner, noted: list[tuple[Watched, Hashable]], fresh: list[Hashable]) -> None:
        self._runner, self._noted, self._fresh = runner, noted, fresh
        self.runs: dict[Hashable, Runs] = {}

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        own, called = self.runs.setdefault(key, Runs(compute)), list[None]()

        def telling() -> None:
            called.append(None)
            compute()

        self._runner.run(key, telling)
        own.times, own.replayed = own.times + 1, not called
        self._noted.append((self, key))
        if called and own.times < LATEST:
            self._fresh.append(key)

    def again(self, key: Hashable) -> None:
        self._runner.run(key, self.runs[key].compute)


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of passes by themselves.

    Args:
        steps: of all passes of each step.
        level: median of the draft's passes after the root's; ``None`` without any.
    """

    steps: list[float]
    level: float | None


class Watch:
    """Engines of a pair whose passes are noted step by step, for one lane."""

    def __init__(self, pair: Pair, way: PassesName) -> None:
        self._device, self._padded = pair.device, way != "eager"
        self._target, self._draft = pair.target, pair.draft
        self._noted: list[tuple[Watched, Hashable]] = []
        self._fresh: list[Hashable] = []
        self._steps: list[list[tuple[Watched, Hashable]]] = []
        self._runners: list[Watched] = []
        self._ended = 0
        lent = pair.running(way).engines
        self._make, self._graphs = lent.runner, lent.graphs
        self.engines = EnginePool(None if self._make is None else self._watched)

    def _watched(self) -> Watched:
        assert self._make is not None
        self._runners.append(Watched(self._make(), self._noted, self._fresh))
        return self._runners[-1]

    def end_step(self, taken: bool) -> bool:
        """End a step; return whether it counts: ``taken``, and its passes ran as they will from now on."""
        self._ended += taken
        steady = taken and not self._fresh and (self._padded or self._ended > FIRST)
        if steady:
            self._steps.append(list(self._noted))
        self._noted.clear()
        self._fresh.clear()
        return steady

    @property
    def captured(self) -> int:
        """Passes that are replayed."""
        return sum(own.replayed for runner in self._runners for own in runner.runs.values())

    @property
    def called(self) -> int:
        """Passes that are called, however often they come."""
        runs = (own for runner in self._runners for own in runner.runs.values())
        return sum(own.times >= LATEST and not own.replayed for own in runs)

    @property
    def way(self) -> str:
        """How passes ran, in words: by what was replayed, not by what was asked for."""
        if not self._padded:
            return "eager"
        if self.captured:
            return f"graphs, but {self.called} passes called" if self.called else "graphs"
        failure = None if self._graphs is None else self._graphs.failure
        return "padded" if failure is None else f"padded, a capture failed: {failure}"

    def passes_alone(self, caches: KVCaches) -> Alone | None:
        """Time the passes of noted steps by themselves, once their answer is over; ``None`` where none are padded."""
        if not self._padded:
            return None
        models = [model for model in (self._target, self._draft) if model is not None]
        for number, model in enumerate(models):  # the target first
            engine = _engine_in(caches, model, verifies=number == 0)
            assert isinstance(engine, PaddedEngine | PaddedFeatureEngine)
            engine.passes.stage_nothing()
        alone = {each: self._time(*each) for step in self._steps for each in step}
        between = (each for step in self._steps for each in step[1:-1])  # the root's pass and verification
        levels = [alone[each] for each in between]
        return Alone(
            [sum(alone[each] for each in step) for step in self._steps], statistics.median(levels) if levels else None
        )

    def close(self) -> None:
        """Let go of all engines."""
        for runner in self._runners:
            runner.runs.clear()
        self._steps.clear()

    def _time(self, watched: Watched, key: Hashable) -> float:
        taken = []
        for _ in range(ROUNDS):
            started = now(self._device)
            for _ in range(AGAIN):
                watched.again(key)
            taken.append((now(self._device) - started) / AGAIN)
        return statistics.median(taken)


def _engine_in(caches: KVCaches, model: PreTrainedModel, verifies: bool) -> AnyEngine:
    """Return the engine that served a model in an answer, or a small new one if none did."""
    if verifies:
        return caches.engine(model, 1, rows=1)
    return caches.feature_engine(model, 1) if isinstance(model, FeatureDraft) else caches.engine(model, 1)


def read_bandwidth(device: torch.device, nbytes: int) -> float:
    """Return bytes per second of a product of a matrix of random numbers and a vector, as one token's pass is."""
    dtype = torch.bfloat16 if nbytes > 10**8 else torch.float32
    width = 8192 if nbytes > 10**8 else 1024
    matrix = torch.empty((nbytes // width // dtype.itemsize, width), dtype=dtype, device=device).normal_()
    vector = torch.ones(width, dtype=dtype, device=device)
    taken = []
    for _ in range(3 + ROUNDS * AGAIN):
        started = now(device)
        matrix @ vector
        taken.append(now(device) - started)
    return matrix.nbytes / statistics.median(taken[3:])
