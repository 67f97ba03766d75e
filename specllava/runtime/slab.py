"""Key/value cache of all layers in one tensor that never moves, written at columns that a tensor names.

A pass over it does the same operations whatever the text's length is, so it can be captured once and replayed. Columns
after the capacity are scratch: a pass that is padded to more rows writes there, and nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PretrainedConfig

from specllava.models.checkpoints.language_model import kv_shape
from specllava.runtime.cache import BranchCache, BranchLayer, Move


class Upload:
    """Bytes that the host writes and the device reads.

    Args:
        nbytes: that fit; ``device`` holds them where passes read them, ``host`` is what is written.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._memory = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.host: npt.NDArray[np.uint8] = self._memory.numpy()
        self.device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        """Wait until the last upload has left ``host``, which is long ago where a download came after it."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self, nbytes: int) -> None:
        """Copy the first ``nbytes`` to the device, in order with its other work."""
        self.device[:nbytes].copy_(self._memory[:nbytes], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device.device))


class Download:
    """Rows of float32 numbers that passes write on the device and the host reads.

    Args:
        device: ``[rows, width]``, where passes write.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.device = torch.zeros((rows, width), device=device)
        self._memory = torch.zeros((rows, width), pin_memory=pinned)
        self._host: npt.NDArray[np.float32] = self._memory.numpy()
        self._copied = torch.cuda.Event() if pinned else None

    def fetch(self, rows: slice) -> list[list[float]]:
        """Copy these rows in order with the device's other work, wait for them, and return them."""
        self._memory[rows].copy_(self.device[rows], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device.device))
            self._copied.synchronize()
        numbers: list[list[float]] = self._host[rows].tolist()
        return numbers


class WriteSlots(NamedTuple):
    """Columns that a padded pass writes, ``[rows]`` on the device, and the number of columns that it reads."""

    slots: Tensor
    window: int


class SlabLayer(BranchLayer):
    """One layer of a :class:`SlabCache`. It appends, as any cache, unless :class:`WriteSlots` name the columns.

    Args:
        both: keys and values, ``[2, 1, heads, capacity + scratch, head_dim]``.
    """

    def __init__(self, both: Tensor, capacity: int) -> None:
        super().__init__(capacity)
        self.both, self.dtype, self.device = both, both.dtype, both.device
        self.keys, self.values = both
        self.write_slots: WriteSlots | None = None
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.write_slots is None:
            return super().update(key_states, value_states)
        slots, window = self.write_slots
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        return self.keys[:, :, :window], self.values[:, :, :window]

    def copy_from(self, other: BranchLayer) -> None:
        self.both[:, :, :, : other.length] = other.both[:, :, :, : other.length]
        self.length = other.length


class SlabCache(BranchCache):
    """A :class:`BranchCache` in one zeroed tensor: a masked column still enters attention, times zero.

    Args:
        capacity: columns that fit: prompt, answer and the largest tree.
        scratch: columns after them.
    """

    def __init__(
        self, config: PretrainedConfig, capacity: int, scratch: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(0, capacity)
        heads, size = kv_shape(config)
        shape = (config.num_hidden_layers, 2, 1, heads, capacity + scratch, size)
        self.slab = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [SlabLayer(both, capacity) for both in self.slab]
        self._moved = Upload(2 * 8 * capacity, device)

    @contextmanager
    def writing_at(self, write_slots: WriteSlots) -> Iterator[None]:
        """Make the layers of one pass write and read these columns."""
        for layer in self.layers:
            layer.write_slots = write_slots
        try:
            yield
        finally:
            for layer in self.layers:
                layer.write_slots = None

    def advance(self, count: int) -> None:
        """Count ``count`` more columns, which a pass has written."""
        length = self.length + count
        for layer in self.layers:
            layer.length = length

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        self.compact(base, offsets)

    def compact(self, base: int, offsets: Sequence[int]) -> Move | None:
        """Keep columns as :meth:`BranchCache.keep`, in two operations whatever the number of layers.

        Returns which columns moved, if any did, for rows kept beside the cache; valid until the next call.

        Raises:
            ValueError: an offset after the columns written.
        """
        self.check_written(base, offsets)
        in_place = next((n for n, offset in enumerate(offsets) if n != offset), len(offsets))
        move = None
        if moved := offsets[in_place:]:
            move = self._stage(base, moved, base + in_place)
            self.slab.index_copy_(4, move.target, self.slab.index_select(4, move.source))
        for layer in self.layers:
            layer.length = base + len(offsets)
        self.keep_labels(base, offsets)
        return move

    def _stage(self, base: int, offsets: Sequence[int], target: int) -> Move:
        """Upload the columns to move without waiting for the device."""
        count = len(offsets)
        self._moved.wait()
        numbers = self._moved.host[: 16 * count].view("int64")
        numbers[:count] = offsets
        numbers[:count] += base
        numbers[count:] = range(target, target + count)
        self._moved.send(16 * count)
        source, goal = self._moved.device[: 16 * count].view(torch.int64).view(2, count)
        return Move(source, goal)
