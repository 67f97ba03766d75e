"""Passes of fixed shapes: rows and columns are padded to buckets, and whatever differs is in buffers.

A row of padding reads the first column and writes a scratch column, which no row reads. So it changes nothing, and two
passes of one shape are the same operations on the same memory, which a runner may capture.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specllava.runtime.pass_shapes import Shape, Shapes
from specllava.runtime.passes import LogitsReduction, PassInput
from specllava.runtime.slab import Download, SlabCache

ROWS = (1, 2, 4, 8, 16, 32, 64)  # of a pass; wider ones are rare and not padded
WIDEST = ROWS[-1]
EXACT_ROWS = 32  # of every pass of a target whose passes are exact
COLUMNS = 512  # a pass reads a multiple of it, its window


class PassRunner(Protocol):
    """Interface of what runs the passes of one engine."""

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        """Run a pass.

        Args:
            key: equal keys promise that ``compute`` does the same operations on the same buffers.
        """
        ...


class EagerRunner:
    """Runner that calls every pass."""

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        compute()


def bucket_of(rows: int) -> int:
    """Return the rows that a pass over ``rows`` tokens is padded to.

    Raises:
        ValueError: more than the widest bucket has.
    """
    if rows > WIDEST:
        raise ValueError(f"a pass over {rows} tokens is wider than the widest bucket, {WIDEST}")
    return next(bucket for bucket in ROWS if bucket >= rows)


def window_of(columns: int) -> int:
    """Return the columns that a pass reads whose last token has column ``columns - 1``."""
    return -(-columns // COLUMNS) * COLUMNS


class PaddedPasses:
    """What the passes of one engine share: input buffers, output buffers and a runner.

    Args:
        cache: where they write; its capacity is a window.
        added: dtype of the mask, the one of the decoder.
    """

    def __init__(
        self, cache: SlabCache, vocabulary: int, dtype: torch.dtype, added: torch.dtype, runner: PassRunner
    ) -> None:
        device = cache.slab.device
        self.least_rows = 1  # more where all passes have as many
        self.cache, self._runner = cache, runner
        self._ran: set[Hashable] = set()  # keys of passes
        self.widest = 0  # rows of a pass that ran
        self.shapes = Shapes(WIDEST, cache.capacity, device)
        self._logits = torch.zeros((WIDEST, vocabulary), dtype=dtype, device=device)
        self._downloads: dict[LogitsReduction, Download] = {}
        self._zero = torch.zeros((), dtype=added, device=device)
        self._never = torch.full((), torch.finfo(added).min, dtype=added, device=device)  # -inf would make NaN of 0 / 0

    def stage(self, batch: PassInput, position_offset: int = 0) -> Shape:
        """Upload the input of a pass, without waiting for the device.

        Args:
            position_offset: position in the text minus column, where the batch names no positions.

        Raises:
            ValueError: it does not fit the cache, or the widest bucket.
        """
        count, start = len(batch.tokens), self.cache.length
        self.cache.check_room(count)
        end = start + count
        shape = self.shapes.of(bucket_of(max(count, self.least_rows)), window_of(end))
        self.shapes.wait()
        shape.numbers[:, :count] = (
            batch.tokens,
            range(start, end),
            range(start + position_offset, end + position_offset) if batch.positions is None else batch.positions,
        )
        shape.visible[:count] = False
        shape.visible[:count, :end] = np.tri(count, end, start) if batch.visible is None else batch.visible
        self.shapes.pad_and_send(shape, count)
        return shape

    def stage_nothing(self) -> None:
        """Stage token 0 at column 0 for every shape, so that any pass may be run once more by itself, to time it."""
        self.shapes.zero()

    def mask(self, shape: Shape) -> Tensor:
        """Compute the mask that is added to attention scores, ``[1, 1, rows, window]``."""
        return torch.where(shape.bits, self._zero, self._never)[None, None]

    def run(
        self,
        kind: Hashable,
        shape: Shape,
        batch: PassInput,
        compute: Callable[[], Tensor],
        reduction: LogitsReduction | None,
    ) -> tuple[Tensor, list[list[float]] | None]:
        """Run a staged pass; return the logits of its tokens, and their reduction if one is given.

        Args:
            kind: differs between passes that ``compute`` computes differently.
            compute: returns logits ``[rows, vocab]`` of all rows of the shape.
        """
        count = len(batch.tokens)
        rows = slice(count - (batch.last or count), count)
        self.run_reduced(kind, shape, compute, reduction)
        self.cache.advance(count)
        return self._logits[rows], None if reduction is None else self._download(reduction).fetch(rows)

    def prepare(
        self,
        kind: Hashable,
        rows: int,
        columns: int,
        compute: Callable[[Shape], Tensor],
        reduction: LogitsReduction | None,
    ) -> None:
        """Run what a runner may capture, over padding alone: each pass that the next columns may need.

        Args:
            rows: tokens of a pass at most; a wider one than the widest bucket is not prepared.
            columns: that are still to be written.
        """
        least, widest = bucket_of(self.least_rows), bucket_of(min(max(rows, self.least_rows), WIDEST))
        buckets = ROWS[ROWS.index(least) : ROWS.index(widest) + 1]
        for window in self._windows(columns):
            for bucket in buckets:
                if ((kind, reduction), bucket, window) not in self._ran:
                    shape = self.shapes.stage_padding(bucket, window)
                    self.run_reduced(kind, shape, partial(compute, shape), reduction)

    def _windows(self, columns: int) -> range:
        """Return the windows that passes over the next columns read; none where nothing is captured."""
        if isinstance(self._runner, EagerRunner):
            return range(0)
        first = window_of(self.cache.length + 1)
        last = window_of(min(self.cache.length + columns, self.cache.capacity))
        return range(first, last + 1, COLUMNS)

    def run_reduced(
        self, kind: Hashable, shape: Shape, compute: Callable[[], Tensor], reduction: LogitsReduction | None
    ) -> None:
        """Run a staged pass, and its reduction with it."""
        download = None if reduction is None else self._download(reduction)

        def whole() -> None:
            with self.cache.writing_at(shape.write_slots):
                logits = compute()
            self._logits[: shape.rows].copy_(logits)
            if reduction is not None and download is not None:
                download.device[: shape.rows].copy_(reduction(logits))

        key = (kind, reduction), shape.rows, shape.write_slots.window
        self._runner.run(key, whole)
        self._ran.add(key)
        self.widest = max(self.widest, shape.rows)

    def _download(self, reduction: LogitsReduction) -> Download:
        if reduction not in self._downloads:
            self._downloads[reduction] = Download(WIDEST, reduction.width, self.cache.slab.device)
        return self._downloads[reduction]
