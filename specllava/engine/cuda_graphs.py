"""Padded passes, and CUDA graphs of them: one graph per rows, window, kind of states and reduction of an engine.

A row of padding reads the first slot and writes a scratch slot, which no row reads. So padding changes nothing, and two
passes of one shape are the same operations on the same memory, which a graph may replay.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specllava.engine.decoders import Batch, Decoder, LanguageModel, PassInputs, Reduction, causal_mask
from specllava.engine.kv_cache import KVCache
from specllava.models.language_model import now

log = logging.getLogger(__name__)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64)  # of a padded pass; wider ones are rare and run as they come
WIDEST: Final = ROWS[-1]
WINDOW: Final = 512  # a padded pass reads a multiple of it
TRIES: Final = 2  # of a capture, each in memory of its own
LONGEST: Final = 160  # characters of a reason, which traces store


def bucket_of(rows: int) -> int:
    """Return the rows that a pass is padded to, of at most :data:`WIDEST`."""
    return next(bucket for bucket in ROWS if bucket >= rows)


def window_of(slots: int) -> int:
    """Return the slots that a padded pass reads whose last token is in slot ``slots - 1``."""
    return -(-slots // WINDOW) * WINDOW


class CudaGraphs:
    """Graphs of a pair's engines: their shared memory and stream, and whether captures succeed.

    No two passes run at once and their inputs are in buffers of the engines, so nothing in it outlives a pass.

    Args:
        capture: without it passes are padded and called, on any device.
    """

    def __init__(self, device: torch.device, capture: bool) -> None:
        self.device, self.enabled = device, capture
        self.captured = 0
        self.seconds = 0.0  # that captures took, which no clock of an answer counts
        self.failure: str | None = None  # why passes are called
        if capture:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    @property
    def capturing(self) -> bool:
        """Whether new passes are captured."""
        return self.enabled and self.failure is None

    def capture(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture a pass, which computes it too; ``None`` where passes are called, or if this failed twice."""
        if not self.capturing:
            return None
        started, failure = now(self.device), ""
        for _ in range(TRIES):
            compute()  # in this thread: the first call of a library in a thread cannot be captured
            before = torch.cuda.current_stream(self.device)
            try:
                graph = self._record(compute)
            except RuntimeError as error:
                failure = str(error).partition("\n")[0][:LONGEST]
                log.warning("a pass was not captured as a CUDA graph: %s", failure)
                torch.cuda.set_stream(before)  # a capture that cannot be ended leaves its own
                self._drop()
            else:
                self.captured += 1
                self.seconds += now(self.device) - started
                return graph
        self.failure = failure
        log.warning("passes run without CUDA graphs from here on, which is slower")
        self.seconds += now(self.device) - started
        return None

    def _record(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            compute()
        return graph

    def _drop(self) -> None:
        """Leave the memory of a capture that failed: until that is ended, no other may begin in it."""
        with suppress(RuntimeError):  # it was ended
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()


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


class StaticInputs:
    """Inputs of padded passes of one shape, at fixed addresses on the device; one upload fills them.

    Args:
        rows: tokens, padding included.
        window: slots that they read.
        scratch: the first slot that padding writes.
    """

    def __init__(self, rows: int, window: int, scratch: int, device: torch.device) -> None:
        self.rows, self.window, self._scratch, self._split = rows, window, scratch, 3 * 8 * rows
        self._memory = torch.zeros(self._split + rows * window, dtype=torch.uint8, device=device)
        self.ids, self.slots, self.positions = self._memory[: self._split].view(torch.int64).view(3, rows)
        self.visible = self._memory[self._split :].view(torch.bool).view(rows, window)

    def upload(
        self, tokens: Sequence[int], start: int, positions: Sequence[int], visible: npt.NDArray[np.bool_] | None
    ) -> None:
        """Upload a pass without waiting for the device: tokens for the slots from ``start`` on, then padding.

        Args:
            visible: slots that each token sees, ``[tokens, start + tokens]``; ``None``: all up to its own.
        """
        count = len(tokens)
        end = start + count
        host = torch.empty(self._memory.shape, dtype=torch.uint8, pin_memory=self._memory.device.type == "cuda")
        integers = host.numpy()[: self._split].view(np.int64).reshape(3, self.rows)
        mask = host.numpy()[self._split :].view(np.bool_).reshape(self.rows, self.window)
        integers[:, :count] = tokens, range(start, end), positions
        integers[:, count:] = 0
        integers[1, count:] = range(self._scratch, self._scratch + self.rows - count)
        mask[:] = False
        mask[:count, :end] = causal_mask(count, start) if visible is None else visible
        mask[count:, 0] = True
        self._memory.copy_(host, non_blocking=True)


class GraphRunner:
    """Padded passes of one engine: their buffers and their graphs.

    Args:
        min_rows: rows of every pass at least, for exact passes.
    """

    def __init__(self, graphs: CudaGraphs, decoder: Decoder, cache: KVCache, min_rows: int = 1) -> None:
        self.min_rows, self.widest = min_rows, 0  # tokens of the widest pass so far
        self._cuda_graphs, self._decoder, self._cache = graphs, decoder, cache
        self._shapes: dict[tuple[int, int], StaticInputs] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        device = decoder.device
        self._logits = torch.zeros((WIDEST, decoder.vocabulary), dtype=decoder.logits_dtype, device=device)
        self._reduced: dict[Reduction, Tensor] = {}
        self._states = {} if isinstance(decoder, LanguageModel) else decoder.static_states(WIDEST)
        self._zero = torch.zeros((), dtype=decoder.dtype, device=device)
        self._never = torch.full_like(self._zero, torch.finfo(decoder.dtype).min)  # -inf would make NaN of 0 / 0

    def run(
        self, batch: Batch, start: int, positions: Sequence[int], reduction: Reduction | None
    ) -> tuple[Tensor, list[list[float]] | None]:
        """Run a pass that writes the slots from ``start`` on; return its logits and their reduction.

        Logits ``[tokens, vocab]`` are valid until the next pass.
        """
        count = len(batch.tokens)
        self.widest = max(self.widest, count)
        shape = self._shape(max(count, self.min_rows), start + count, reduction)
        shape.upload(batch.tokens, start, positions, batch.visible)
        if batch.states is not None:
            self._states[batch.drafted][:count] = batch.states
        # While a module is wrapped, passes are called: a graph holds what modules did when it was captured.
        graph = None if self._decoder.wrapped else self._captured(shape, batch.drafted, reduction)
        if graph is None:
            self._call(shape, batch.drafted, reduction)
        else:
            graph.replay()
        rows = slice(0 if batch.last is None else count - batch.last, count)
        return self._logits[rows], None if reduction is None else self._reduced[reduction][rows].tolist()

    def warm_up(self, rows: int, slots: int, reduction: Reduction | None) -> None:
        """Capture every shape that passes over up to ``rows`` tokens in the next ``slots`` can need."""
        if not self._cuda_graphs.capturing or self._decoder.wrapped:
            return
        used = self._cache.length
        widths = range(bucket_of(self.min_rows), bucket_of(min(max(rows, self.min_rows), WIDEST)) + 1)
        last = window_of(min(used + slots, self._cache.capacity))
        for window in range(window_of(used + 1), last + 1, WINDOW):
            for bucket in ROWS:
                for drafted in self._decoder.drafted_states:
                    if bucket in widths and (bucket, window, drafted, reduction) not in self._graphs:
                        shape = self._shape(bucket, window, reduction)
                        shape.upload((), 0, (), None)
                        self._captured(shape, drafted, reduction)

    def _shape(self, rows: int, slots: int, reduction: Reduction | None) -> StaticInputs:
        """Return the inputs of a shape; buffers of inputs and reductions are made when they are first needed."""
        if reduction is not None and reduction not in self._reduced:
            self._reduced[reduction] = torch.zeros((WIDEST, reduction.width), device=self._decoder.device)
        key = bucket_of(rows), window_of(slots)
        if key not in self._shapes:
            self._shapes[key] = StaticInputs(*key, self._cache.capacity, self._decoder.device)
        return self._shapes[key]

    def _captured(
        self, shape: StaticInputs, drafted: bool, reduction: Reduction | None
    ) -> torch.cuda.CUDAGraph | None:
        """Return the graph of a pass, captured the first time; ``None`` where passes are not captured."""
        key = shape.rows, shape.window, drafted, reduction
        if key not in self._graphs:
            self._graphs[key] = self._cuda_graphs.capture(partial(self._call, shape, drafted, reduction))
        return self._graphs[key]

    def _call(self, shape: StaticInputs, drafted: bool, reduction: Reduction | None) -> None:
        """Run the decoder over static inputs, and write logits, states and reduction to static outputs."""
        self._cache.writes, self._cache.window = shape.slots, shape.window
        mask = torch.where(shape.visible, self._zero, self._never)[None, None]
        states = self._states[drafted][: shape.rows] if self._states else None
        inputs = PassInputs(shape.ids, shape.positions, mask, states, drafted)
        hidden, joined = self._decoder(inputs, self._cache)
        if joined is not None:
            self._cache.write_states(joined)
        logits = self._decoder.logits(hidden)
        self._logits[: shape.rows].copy_(logits)
        if reduction is not None:
            self._reduced[reduction][: shape.rows].copy_(reduction(logits))
