"""Checks of captured passes: their bits, the memory that they leave and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch

from benchmarks.gpu.lanes import LANES, PICTURE, QUESTION
from benchmarks.shared.pass_seconds import CONTEXT, engine_of
from specllava.decoding import Request
from specllava.lane import Lane
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.kv_caches import EnginePool, KVCaches
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine
from specllava.runtime.padded_passes import EagerRunner
from specllava.runtime.passes import PassInput
from specllava.runtime.slab import Download

LANE = "top 10, EAGLE-2"
STEPS = 6


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check."""

    passed: bool
    told: str


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


def check_memory(pair: Pair, way: PassesName, passes: int) -> Check:
    """Run a pass many times."""
    engine = engine_of(pair.target, CONTEXT + 64, pair.running(way).engines)
    held = []
    for times in (3, passes):
        for _ in range(times):
            engine.forward(PassInput([1] * 21))
            engine.keep(0, [])
        held.append(torch.cuda.memory_allocated(pair.device))
    return Check(held[0] == held[1], f"{held[1] - held[0]} bytes more after {passes} passes")


@contextmanager
def downloads() -> Iterator[list[slice]]:
    """Note every download."""
    noted, fetch = list[slice](), Download.fetch

    def noting(download: Download, rows: slice) -> list[list[float]]:
        noted.append(rows)
        return fetch(download, rows)

    with patch.object(Download, "fetch", noting):
        yield noted


def check_waits(pair: Pair, way: PassesName) -> Check:
    """Take steps while torch refuses every operation that waits for the device, events left out.

    A step downloads once for each pass: the draft's guesses of a level, and the verdict.
    """
    prompt = pair.prompt(PICTURE, QUESTION, 64)
    request = pair.request(Lane("x", LANES[LANE], prompt), KVCaches(pair.running(way).engines), record=False)
    request.prefill()
    for _ in range(6):
        _step(request)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with downloads() as noted:
            passes = sum(_step(request) for _ in range(STEPS))
    except RuntimeError as error:
        return Check(False, str(error).splitlines()[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Check(len(noted) == passes, f"{len(noted)} downloads of {passes} passes in {STEPS} steps")


def _step(request: Request) -> int:
    """Take a step; return its passes."""
    request.propose()
    request.verify()
    return len(request.draft_pass_tokens) + 1
