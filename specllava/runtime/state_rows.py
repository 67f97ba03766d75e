"""Hidden states of the columns of a KV cache, held for a drafter that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specllava.runtime.slab import Move


class StateRows:
    """A row of states per column, from the first column on; storage is allocated with the first row.

    Args:
        capacity: rows that fit.
        scratch: rows behind them, for passes that are padded.
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
        """Hold the rows of columns ``start`` on. Behind a gap nothing is held, since a text is read from its start."""
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
