"""Who proposes tokens. A drafter opens a session per run; a session grows trees and remembers what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specllava.tree import DraftTree, Pruned


class DraftSession(Protocol):
    """Drafting for one answer. ``propose`` and ``keep`` take turns."""

    @property
    def drawn(self) -> Tensor | None:
        """The distributions that the children of the last tree's nodes were drawn from, ``[nodes, vocab]``; ``None`` if
        they were chosen. Rows of nodes without children mean nothing."""
        ...

    @property
    def pruned(self) -> tuple[Pruned, ...]:
        """Guesses that the last tree was grown with and then without."""
        ...

    def propose(self, root: int, depth: int) -> DraftTree:
        """A tree of guesses below ``root``, the last emitted token, at most ``depth`` deep."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """The target kept these nodes of the last tree, the root first."""
        ...
