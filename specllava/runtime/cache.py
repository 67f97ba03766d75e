"""Key/value cache that keeps a branch: preallocated, compacted in place, storage never moves.

A verification pass writes one column per tree node after the context. ``keep`` moves the accepted nodes'
columns together and forgets the rest, which leaves what running the accepted tokens alone would have left. Each
column's content (its token or picture) moves with it, so that cache and text agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

Content = int | str | None  # a token; in an image slot, the picture's key, or None for a picture without one


class BranchLayer(CacheLayerMixin):
    """Keys and values of one attention layer, ``[batch, heads, capacity, head_dim]``; ``length`` columns count.

    They lie in one piece of memory, so that one move brings both along.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, dim = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        # Not zeroed: columns are read only once they have been written, and a long cache is mostly never touched.
        self.both = key_states.new_empty((2, batch, heads, self.capacity, dim))
        self.keys, self.values = self.both
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns; returns views of everything that counts."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def copy_from(self, other: BranchLayer) -> None:
        """Take over the columns of a layer of smaller capacity."""
        if other.is_initialized:
            self.lazy_initialization(other.keys, other.values)
            self.both[:, :, :, : other.length] = other.both[:, :, :, : other.length]
            self.length = other.length

    def keep(self, base: int, columns: Tensor | None, count: int) -> None:
        """Keep columns as :meth:`BranchCache.keep`; ``columns`` is ``None`` when those are in place already."""
        if columns is not None:
            self.both[:, :, :, base : base + count] = self.both.index_select(3, columns)
        self.length = base + count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity


class BranchCache(Cache):
    """One :class:`BranchLayer` per decoder layer.

    Args:
        capacity: columns that fit: prompt, answer and the largest tree.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[BranchLayer(capacity) for _ in range(layers)])
        self.capacity = capacity
        self.contents: list[Content] = []  # one per column; the engine that runs a pass adds them
        self.positions: list[int] = []  # in the text, one per column where the engine has sliding windows, else none

    @property
    def length(self) -> int:
        return int(self.get_seq_length())

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, those of columns that nothing was written to included."""
        return sum(layer.both.nbytes for layer in self.layers if layer.is_initialized)

    def copy_from(self, other: BranchCache) -> None:
        """Take over the columns of a cache of smaller capacity; this one holds none yet."""
        for layer, held in zip(self.layers, other.layers, strict=True):
            layer.copy_from(held)
        self.contents, self.positions = list(other.contents), list(other.positions)

    def check_room(self, count: int) -> None:
        """Refuse a pass over ``count`` tokens that does not fit.

        Raises:
            ValueError: they do not fit.
        """
        if self.length + count > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} columns, {self.length + count} are needed")

    def common_prefix(self, contents: Sequence[Content]) -> int:
        """Count the columns from the start whose content equals ``contents``; a picture without a key equals none."""
        pairs = zip(self.contents, contents, strict=False)
        return next(
            (column for column, (held, wanted) in enumerate(pairs) if held != wanted or held is None),
            min(len(self.contents), len(contents)),
        )

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        """Keep the first ``base`` columns and then the columns ``base + offset``; forget all others.

        Raises:
            ValueError: an offset after the columns written.
        """
        self.check_written(base, offsets)
        columns = None
        if list(offsets) != list(range(len(offsets))):
            columns = torch.tensor(offsets, device=self.layers[0].keys.device) + base
        for layer in self.layers:  # which a large model may have on several devices
            layer.keep(base, None if columns is None else columns.to(layer.keys.device), len(offsets))
        self.keep_labels(base, offsets)

    def check_written(self, base: int, offsets: Sequence[int]) -> None:
        """Refuse to keep columns ``base + offset`` after those written.

        Raises:
            ValueError: there is one.
        """
        if offsets and base + max(offsets) >= self.length:
            raise ValueError(f"column {base + max(offsets)} was never written: the cache holds {self.length}")

    def keep_labels(self, base: int, offsets: Sequence[int]) -> None:
        """Keep contents and positions of the first ``base`` columns and of the columns ``base + offset``."""
        self.contents[base:] = [self.contents[base + offset] for offset in offsets]
        if self.positions:
            self.positions[base:] = [self.positions[base + offset] for offset in offsets]


class Move(NamedTuple):
    """Columns to read and columns to write, ``[moved]`` each, on the device."""

    source: Tensor
    target: Tensor


class StateRows:
    """A row of states per column, from the first column on; storage is allocated with the first row.

    Args:
        scratch: rows after them, for passes that are padded.
    """

    def __init__(self, capacity: int, scratch: int = 0) -> None:
        self.length = 0
        self._capacity = capacity + scratch
        self._rows: Tensor | None = None

    @property
    def rows(self) -> Tensor | None:
        """The rows held, ``[length, width]``; ``None`` before the first."""
        return None if self._rows is None else self._rows[: self.length]

    @property
    def storage(self) -> Tensor:
        """All rows, ``[capacity + scratch, width]``; they never move."""
        assert self._rows is not None, "no row was ever held"
        return self._rows

    @property
    def nbytes(self) -> int:
        return 0 if self._rows is None else self._rows.nbytes

    def reserve(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate storage before the first row."""
        self._rows = torch.zeros((self._capacity, width), dtype=dtype, device=device)

    def write(self, start: int, rows: Tensor) -> None:
        """Hold the rows of columns ``start`` on. After a gap nothing is held, since a text is read from its start."""
        if start > self.length:
            return
        if self._rows is None:
            self._rows = rows.new_empty((self._capacity, rows.shape[-1]))
        self._rows[start : start + len(rows)] = rows
        self.length = start + len(rows)

    def advance(self, start: int, count: int) -> None:
        """Hold ``count`` rows of columns ``start`` on, which a pass has written to the storage; as :meth:`write`."""
        if self._rows is not None and start <= self.length:
            self.length = start + count

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        """Keep rows as the KV cache keeps its columns; see :meth:`BranchCache.keep`."""
        if base >= self.length:
            return
        assert self._rows is not None
        kept = [offset for offset in offsets if base + offset < self.length]
        if kept != list(range(len(kept))):
            chosen = torch.tensor(kept, device=self._rows.device) + base
            self._rows[base : base + len(kept)] = self._rows[chosen]
        self.length = base + len(kept)

    def move(self, base: int, count: int, move: Move | None) -> None:
        """Keep rows as :meth:`SlabCache.compact` has kept columns; all that were written are held."""
        if base >= self.length:
            return
        if move is not None:
            self.storage.index_copy_(0, move.target, self.storage.index_select(0, move.source))
        self.length = base + count

    def copy_from(self, other: StateRows) -> None:
        """Take over the rows of another."""
        if other.rows is not None:
            self.write(0, other.rows)
