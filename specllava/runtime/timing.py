"""The clock, and costs of passes on this machine: measured for the cost-aware rule, and kept for the next run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from transformers import PreTrainedModel

from specllava.core.files import write_whole
from specllava.core.growth.cost_model import Costs, read_costs
from specllava.models.checkpoints.language_model import input_device
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.kv_caches import AnyEngine, EnginePool
from specllava.runtime.passes import PassInput

CONTEXT = 192  # tokens before the measured ones
VERIFY_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DRAFT_ROWS = (1, 2, 4, 8)
REPEATS, WARM_UP = 5, 2
DIRECTORY: Final = "specllava/costs"  # of a user's caches


def now(device: torch.device) -> float:
    """Return wall-clock seconds after all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def now_read() -> float:
    """Return wall-clock seconds where the host has just read what the device computed last.

    Within a step that is so at every mark: guesses and verdict are read, so all work before them is done, and a queued
    verification is timed as one. Keeping a branch leaves two copies to the device, which the next pass follows.
    """
    return time.perf_counter()


class CostMeasurement:
    """Measurement of the cost of passes of both models by their number of tokens, about 100 passes.

    It may pause between any two of them, and goes on from there.

    A machine's speed changes by half within seconds, and one disturbed point misleads a rule that compares costs more
    than a common error does. So each pass is a share of its round over all numbers of tokens, and the quickest round
    gives the seconds.
    """

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel, engines: EnginePool) -> None:
        self._ladders, self._engines = ((target, VERIFY_ROWS), (draft, DRAFT_ROWS)), engines
        self._passes: Generator[None, None, Costs] | None = None
        self._costs: Costs | None = None

    def advance(self) -> bool:
        """Time one more pass; return whether there are more. One that fails begins anew."""
        if self._costs is not None:
            return False
        self._passes = self._passes or self._measure()
        try:
            next(self._passes)
        except StopIteration as done:
            self._costs = done.value
        except BaseException:
            self._passes = None
            raise
        return self._costs is None

    def finish(self) -> Costs:
        """Time the remaining passes and return the costs."""
        while self._costs is None:
            self.advance()
        return self._costs

    def _measure(self) -> Generator[None, None, Costs]:
        taken = []
        for model, rows in self._ladders:
            engine = engine_of(model, CONTEXT + max(rows), self._engines)
            taken.append((yield from timed_passes([engine], rows, REPEATS))[0])
            self._engines.give_back([engine])
        return Costs.fit(*map(normalise_by_rounds, taken))


def engine_of(model: PreTrainedModel, capacity: int, engines: EnginePool | None = None) -> AnyEngine:
    """Return the engine that a model runs in, of those given or one whose passes have the shapes that they come in."""
    engines = engines or EnginePool()
    if isinstance(model, FeatureDraft):
        return engines.feature_engine(model, capacity)
    return engines.engine(model, capacity)


def normalise_by_rounds(taken: dict[int, list[float]]) -> dict[int, float]:
    """Return the median share of a round for each number of tokens, in seconds of the quickest round.

    Raises:
        ValueError: the clock gave finite seconds above 0 in no round; a round without is left out.
    """
    times = np.array(list(taken.values()))  # [numbers, rounds]
    rounds = times.sum(axis=0)
    counted = np.isfinite(rounds) & (rounds > 0)
    if not counted.any():
        raise ValueError(f"the clock gave no seconds of passes: rounds of {rounds.tolist()} s")
    times, rounds = times[:, counted], rounds[counted]
    shares = np.median(times / rounds, axis=1)
    return dict(zip(taken, (shares * rounds.min()).tolist(), strict=True))


def pass_seconds(
    engines: Sequence[AnyEngine], ladder: Sequence[int], repeats: int, context: int = CONTEXT
) -> list[dict[int, list[float]]]:
    """Return the seconds of :func:`timed_passes`, without a pause."""
    passes = timed_passes(engines, ladder, repeats, context)
    while True:
        try:
            next(passes)
        except StopIteration as done:
            seconds: list[dict[int, list[float]]] = done.value
            return seconds


@torch.inference_mode()
def timed_passes(
    engines: Sequence[AnyEngine], ladder: Sequence[int], repeats: int, context: int = CONTEXT
) -> Generator[None, None, list[dict[int, list[float]]]]:
    """Measure seconds of every pass of each engine, by its number of tokens, after ``context`` tokens.

    It may pause after each number of tokens. Engines and numbers of tokens take turns, so that whatever else the
    machine does falls on all of them.
    """
    for engine in engines:
        engine.forward(PassInput([0] * context, last=1))
    seconds: list[dict[int, list[float]]] = [{rows: [] for rows in ladder} for _ in engines]
    for repeat in range(WARM_UP + repeats):
        for rows in ladder:
            visible = np.ones((rows, context + rows), dtype=np.bool_)
            visible[:, context:] = np.tril(visible[:, context:])
            for engine, taken in zip(engines, seconds, strict=True):
                started = now(engine.device)
                engine.forward(PassInput([0] * rows, visible if rows > 1 else None)).logits.argmax(-1).tolist()
                if repeat >= WARM_UP:
                    taken[rows].append(now(engine.device) - started)
                engine.keep(context, [])
            yield
    return seconds


def kept_costs(key: str, measure: Callable[[], Costs]) -> Costs:
    """Return the costs that are kept under a key; measure them, and keep them where that can be written, if none are.

    They are what a cost model begins with, and every step corrects it. What is reported as measured is measured.
    """
    if (kept := costs_of_before(key)) is not None:
        return kept
    costs = measure()
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(asdict(costs)))
    return costs


def costs_of_before(key: str) -> Costs | None:
    """Return the costs that are kept under a key, ``None`` if none are."""
    with contextlib.suppress(ValueError, RuntimeError):
        return read_costs(_file(key))
    return None


def _file(key: str) -> Path:
    """Return the path of a key's costs.

    Raises:
        RuntimeError: the user has no home, as in a container may be.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / DIRECTORY / f"{key}.json"


def costs_key(target: PreTrainedModel, draft: PreTrainedModel, *kind: object) -> str:
    """Return a key of what the time of passes depends on: machine, device, threads, versions, shapes and precision.

    Args:
        kind: further differences of passes, such as how weights are stored.
    """
    device = input_device(target)
    facts = [
        *platform.uname(), device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        torch.get_num_threads(), torch.__version__,
        *((type(model).__name__, str(model.dtype), model.config.to_json_string()) for model in (target, draft)), *kind,
    ]  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
