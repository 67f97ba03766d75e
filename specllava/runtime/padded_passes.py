"""Passes of fixed shapes: rows and columns are padded to buckets, and whatever differs is in buffers.

A row of padding reads the first column and writes a scratch column, which no row reads. So it changes nothing, and two
passes of one shape are the same operations on the same memory, which a runner may capture.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specllava.runtime.passes import LogitsReduction, PassInput
from specllava.runtime.slab import Download, SlabCache, Upload, WriteSlots

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


@dataclass(frozen=True, slots=True)
class Shape:
    """Buffers of one shape of a pass; those on the device are views of one upload.

    Args:
        numbers: token, column and position of each row, ``[3, rows]``, written by the host.
        visible: which columns each row attends to, ``[rows, window]``, written by the host.
        ids: ``[1, rows]`` on the device.
        write_slots: columns to write and to read.
        positions: ``[rows]``, in the text.
        bits: ``visible`` on the device.
    """

    numbers: npt.NDArray[np.int64]
    visible: npt.NDArray[np.bool_]
    nbytes: int
    ids: Tensor
    write_slots: WriteSlots
    positions: Tensor
    bits: Tensor

    @property
    def rows(self) -> int:
        return len(self.positions)


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
        self._cache, self._runner = cache, runner
        self._ran: set[Hashable] = set()  # keys of passes
        self.widest = 0  # rows of a pass that ran
        self._upload = Upload(WIDEST * (3 * 8 + cache.capacity), device)
        self._shapes: dict[tuple[int, int], Shape] = {}
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
        count, start = len(batch.tokens), self._cache.length
        self._cache.check_room(count)
        end = start + count
        window = window_of(end)
        shape = self._shape(bucket_of(max(count, self.least_rows)), window)
        self._upload.wait()
        shape.numbers[:, :count] = (
            batch.tokens,
            range(start, end),
            range(start + position_offset, end + position_offset) if batch.positions is None else batch.positions,
        )
        shape.visible[:count] = False
        shape.visible[:count, :end] = np.tri(count, end, start) if batch.visible is None else batch.visible
        self._pad(shape, count)
        self._upload.send(shape.nbytes)
        return shape

    def _stage_padding(self, shape: Shape) -> None:
        self._upload.wait()
        self._pad(shape, 0)
        self._upload.send(shape.nbytes)

    def _pad(self, shape: Shape, count: int) -> None:
        """Make padding of the rows after the first ``count``."""
        shape.numbers[:, count:] = 0
        shape.numbers[1, count:] = range(self._cache.capacity, self._cache.capacity + shape.rows - count)
        shape.visible[count:] = False
        shape.visible[count:, 0] = True

    def stage_nothing(self) -> None:
        """Stage token 0 at column 0 for every shape, so that any pass may be run once more by itself, to time it."""
        self._upload.device.zero_()

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
        rows = slice(len(batch.tokens) - (batch.last or len(batch.tokens)), len(batch.tokens))
        self._call(kind, shape, compute, reduction)
        self._cache.advance(len(batch.tokens))
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
        if isinstance(self._runner, EagerRunner):
            return
        first = window_of(self._cache.length + 1)
        last = window_of(min(self._cache.length + columns, self._cache.capacity))
        widest = bucket_of(min(max(rows, self.least_rows), WIDEST))
        for window in range(first, last + 1, COLUMNS):
            for bucket in ROWS[ROWS.index(bucket_of(self.least_rows)) : ROWS.index(widest) + 1]:
                shape = self._shape(bucket, window)
                if self._key(kind, shape, reduction) not in self._ran:
                    self._stage_padding(shape)
                    self._call(kind, shape, partial(compute, shape), reduction)

    def _key(self, kind: Hashable, shape: Shape, reduction: LogitsReduction | None) -> Hashable:
        return kind, shape.rows, shape.write_slots.window, reduction

    def _call(
        self, kind: Hashable, shape: Shape, compute: Callable[[], Tensor], reduction: LogitsReduction | None
    ) -> None:
        """Run a staged pass, and its reduction with it."""
        download = None if reduction is None else self._download(reduction)

        def whole() -> None:
            with self._cache.writing_at(shape.write_slots):
                logits = compute()
            self._logits[: shape.rows].copy_(logits)
            if reduction is not None and download is not None:
                download.device[: shape.rows].copy_(reduction(logits))

        key = self._key(kind, shape, reduction)
        self._runner.run(key, whole)
        self._ran.add(key)
        self.widest = max(self.widest, shape.rows)

    def _download(self, reduction: LogitsReduction) -> Download:
        if reduction not in self._downloads:
            self._downloads[reduction] = Download(WIDEST, reduction.width, self._cache.slab.device)
        return self._downloads[reduction]

    def _shape(self, rows: int, window: int) -> Shape:
        if (rows, window) not in self._shapes:
            numbers, nbytes = 3 * 8 * rows, rows * (3 * 8 + window)
            host, there = self._upload.host, self._upload.device
            integers = there[:numbers].view(torch.int64).view(3, rows)
            self._shapes[rows, window] = Shape(
                numbers=host[:numbers].view(np.int64).reshape(3, rows),
                visible=host[numbers:nbytes].view(np.bool_).reshape(rows, window),
                nbytes=nbytes,
                ids=integers[:1],
                write_slots=WriteSlots(integers[1], window),
                positions=integers[2],
                bits=there[numbers:nbytes].view(torch.bool).view(rows, window),
            )
        return self._shapes[rows, window]
