"""Input buffers of passes of fixed shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specllava.runtime.slab import Upload, WriteSlots


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


class Shapes:
    """Buffers of several shapes in the memory of one upload, so that one is used at a time.

    Args:
        rows: of the widest shape.
        capacity: columns of the cache, after which scratch begins.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device) -> None:
        self._capacity, self._upload = capacity, Upload(rows * (3 * 8 + capacity), device)
        self._shapes: dict[tuple[int, int], Shape] = {}

    def of(self, rows: int, window: int) -> Shape:
        """Return the buffers of a shape."""
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

    def wait(self) -> None:
        """Wait until the host may write: see :meth:`Upload.wait`."""
        self._upload.wait()

    def pad_and_send(self, shape: Shape, count: int) -> None:
        """Make padding of the rows after the first ``count``, and upload all."""
        shape.numbers[:, count:] = 0
        shape.numbers[1, count:] = range(self._capacity, self._capacity + shape.rows - count)
        shape.visible[count:] = False
        shape.visible[count:, 0] = True
        self._upload.send(shape.nbytes)

    def stage_padding(self, rows: int, window: int) -> Shape:
        """Upload a shape of padding alone."""
        shape = self.of(rows, window)
        self.wait()
        self.pad_and_send(shape, 0)
        return shape

    def zero(self) -> None:
        """Stage token 0 at column 0, without a look at the host's buffers."""
        self._upload.device.zero_()
