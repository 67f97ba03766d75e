"""The drafter that proposes nothing: with it, the decode loop is target-only decoding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specllava.tree import DraftTree, Pruned


class Nobody:
    """A session without guesses; the target decodes one token per pass."""

    drawn: Tensor | None = None
    pruned: tuple[Pruned, ...] = ()

    def propose(self, root: int, depth: int) -> DraftTree:
        return DraftTree.only_root(root)

    def keep(self, path: Sequence[int]) -> None:
        pass
