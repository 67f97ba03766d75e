"""The drafter that proposes nothing: with it, the decode loop is target-only decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specllava.config import DecodingConfig
from specllava.tree import DraftTree


class Nobody:
    """A session without guesses; the target decodes one token per pass."""

    def propose(self, root: int, depth: int, config: DecodingConfig) -> DraftTree:
        return DraftTree.only_root(root)

    def keep(self, path: Sequence[int]) -> None:
        pass
