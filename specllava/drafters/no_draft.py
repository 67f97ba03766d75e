"""The drafter that proposes nothing: with it, the decode loop is target-only decoding."""

from __future__ import annotations

from specllava.core.tree import DraftTree
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession


class NoDraft(Drafter, DraftSession):
    """Drafter without guesses: the target decodes one token per pass."""

    name = "none"

    def open(self, context: DraftContext) -> DraftSession:
        return self

    def propose(self, root: int, depth: int) -> DraftTree:
        return DraftTree.only_root(root)
