"""Checks of captured passes: their bits, their time alone, the memory that they leave and what they wait for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from benchmarks.gpu_llava import LANES, PICTURE, QUESTION
from specllava.decoding import Request
from specllava.lane import Lane
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.kv_caches import AnyEngine, EnginePool, KVCaches
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine
from specllava.runtime.padded_passes import EagerRunner, PassRunner
from specllava.runtime.passes import PassInput
from specllava.runtime.timing import CONTEXT, engine_of, now

LARGE, SMALL = 2 * 10**9, 2 * 10**7  # bytes that are read to measure bandwidth, on a GPU and on a CPU
AGAIN = 20  # times that a pass is run alone
LANE = "top 10, EAGLE-2"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check."""

    passed: bool
    told: str


class Watched:
    """Runner that notes which passes run, and can run each again."""

    def __init__(self, runner: PassRunner, noted: list[tuple[Watched, Hashable]]) -> None:
        self._runner, self._noted = runner, noted
        self._computes: dict[Hashable, Callable[[], None]] = {}

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        self._noted.append((self, key))
        self._computes[key] = compute
        self._runner.run(key, compute)

    def again(self, key: Hashable) -> None:
        self._runner.run(key, self._computes[key])


class Watch:
    """Engines of a pair whose passes are noted, for one lane."""

    def __init__(self, pair: Pair, way: PassesName) -> None:
        self._device, self._padded = pair.device, way != "eager"
        self._models = [model for model in (pair.target, pair.draft) if model is not None]
        self._noted: list[tuple[Watched, Hashable]] = []
        make = pair.running(way).engines.runner
        self.engines = EnginePool() if make is None else EnginePool(lambda: Watched(make(), self._noted))

    def forget(self) -> None:
        """Forget the passes so far."""
        self._noted.clear()

    def passes_alone(self, caches: KVCaches) -> float | None:
        """Seconds that the noted passes of an answer that is over take by themselves; ``None`` if none were noted."""
        if not self._padded:
            return None
        for number, model in enumerate(self._models):  # the target first
            engine = engine_in(caches, model, verifies=number == 0)
            assert isinstance(engine, PaddedEngine | PaddedFeatureEngine)
            engine.passes.stage_nothing()
        alone = {}
        for watched, key in set(self._noted):
            taken = []
            for _ in range(AGAIN):
                started = now(self._device)
                watched.again(key)
                taken.append(now(self._device) - started)
            alone[watched, key] = statistics.median(taken)
        return sum(alone[each] for each in self._noted)


def engine_in(caches: KVCaches, model: PreTrainedModel, verifies: bool) -> AnyEngine:
    """The engine that served a model in an answer, or a small new one if none did."""
    if verifies:
        return caches.engine(model, 1, rows=1)
    return caches.feature_engine(model, 1) if isinstance(model, FeatureDraft) else caches.engine(model, 1)


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second that are read by a product of a large matrix and a vector, as one token's pass is."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    width = 8192 if device.type == "cuda" else 1024
    matrix = torch.zeros(((LARGE if device.type == "cuda" else SMALL) // width // dtype.itemsize, width), dtype=dtype)
    matrix, vector = matrix.to(device), torch.zeros(width, dtype=dtype, device=device)
    taken = []
    for _ in range(3 + AGAIN):
        started = now(device)
        matrix @ vector
        taken.append(now(device) - started)
    return matrix.nbytes / statistics.median(taken[3:])


def check_bits(pair: Pair, way: PassesName) -> Check:
    """Run a lane's passes of every kind twice, called and as ``way`` has them; compare logits and whole slabs."""
    assert pair.draft is not None
    make = pair.running(way).engines.runner
    assert make is not None
    compared = unequal = 0
    for model in (pair.target, pair.draft):
        called, other = (engine_of(model, 2 * CONTEXT, EnginePool(each)) for each in (EagerRunner, make))
        for engine in (called, other):
            engine.forward(PassInput([1] * CONTEXT, last=1))
        for number in range(4):  # called, captured, replayed
            for rows in (1, 3, 8, 13, 32, 64):
                batch = PassInput([(7 * number + row) % 512 + 1 for row in range(rows)])
                one, same = called.forward(batch).logits, other.forward(batch).logits
                compared += 1
                unequal += not torch.equal(one, same)
                for engine in (called, other):
                    engine.keep(CONTEXT, range(0, rows, 2))
                    engine.keep(CONTEXT, [])
        assert isinstance(called, PaddedEngine | PaddedFeatureEngine)
        assert isinstance(other, PaddedEngine | PaddedFeatureEngine)
        unequal += not torch.equal(called.cache.slab, other.cache.slab)
        compared += 1
    return Check(unequal == 0, f"{unequal} of {compared} outputs and slabs differ")


def check_memory(pair: Pair, way: PassesName) -> Check:
    """Run a pass a thousand times."""
    if pair.device.type != "cuda":
        return Check(True, "not measured on a CPU")
    engine = engine_of(pair.target, CONTEXT + 64, pair.running(way).engines)
    held = []
    for times in (3, 1000):
        for _ in range(times):
            engine.forward(PassInput([1] * 21))
            engine.keep(0, [])
        held.append(torch.cuda.memory_allocated(pair.device))
    return Check(held[0] == held[1], f"{held[1] - held[0]} bytes more")


def check_waits(pair: Pair, way: PassesName) -> Check:
    """Take steps while torch refuses every operation that waits for the device."""
    prompt = pair.prompt(PICTURE, QUESTION, 64)
    request = pair.request(Lane("x", LANES[LANE], prompt), KVCaches(pair.running(way).engines), record=False)
    request.prefill()
    for _ in range(6):
        _step(request)
    if pair.device.type != "cuda":
        return Check(True, "not measured on a CPU")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            _step(request)
    except RuntimeError as error:
        return Check(False, str(error).splitlines()[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Check(True, "no other wait in 6 steps")


def _step(request: Request) -> None:
    request.propose()
    request.verify()
