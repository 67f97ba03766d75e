"""CUDA graphs of passes: each is captured once and replayed from then on."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import torch

log = logging.getLogger(__name__)
TRIES: Final = 2  # of a capture, each in memory of its own
LONGEST: Final = 160  # characters of a reason, which traces hold


class GraphMemory:
    """Memory and stream that the graphs of a pair's engines share, and what became of the captures.

    No two passes run at once and their inputs are in buffers of the engines, so nothing in it outlives a pass.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.captured = 0
        self.failure: str | None = None  # why passes are called
        self.seconds = 0.0  # that captures took, which no clock of an answer counts

    def capture(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture a pass, which computes it too; ``None`` if that failed twice, now or before."""
        if self.failure is not None:
            return None
        started, failure = self._now(), ""
        for _ in range(TRIES):
            compute()  # in this thread: the first call of a library in a thread cannot be captured
            before = torch.cuda.current_stream(self._device)
            try:
                graph = self._record(compute)
            except RuntimeError as error:
                failure = str(error).partition("\n")[0][:LONGEST]
                log.warning("a pass was not captured as a CUDA graph: %s", failure)
                torch.cuda.set_stream(before)  # a capture that cannot be ended leaves its own
                self._drop()
            else:
                self.captured += 1
                self.seconds += self._now() - started
                return graph
        self.failure = failure
        log.warning("passes run without CUDA graphs from here on, which is slower")
        self.seconds += self._now() - started
        return None

    def _record(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        ):
            compute()
        return graph

    def _drop(self) -> None:
        """Leave the memory of a capture that failed: until that is ended, no other may begin in it."""
        with suppress(RuntimeError):  # it was ended
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    def _now(self) -> float:
        torch.cuda.synchronize(self._device)
        return time.perf_counter()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: where that destroys an older graph, a capture fails."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GraphRunner:
    """Runner that captures a pass when it first comes, and replays it from then on; it calls what was not captured."""

    def __init__(self, memory: GraphMemory) -> None:
        self._memory = memory
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        if key not in self._graphs:
            self._graphs[key] = self._memory.capture(compute)
        graph = self._graphs[key]
        if graph is None:
            compute()
        else:
            graph.replay()
