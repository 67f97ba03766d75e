"""Verification that is queued after a draft's passes, before the host has read the tree that they make."""

from __future__ import annotations

from collections.abc import Sequence

from specllava.core.tree import DraftTree
from specllava.runtime.padded_engines import PaddedEngine
from specllava.runtime.passes import LogitsReduction, PassOutput
from specllava.runtime.tree_passes import TreePasses


class QueuedVerification:
    """A target's passes over trees that a device selects; each serves only the very tree that the drafter proposes.

    Args:
        nodes: guesses of a tree at most.
        columns: that the target still writes at most.
        reduction: of its logits.
    """

    def __init__(self, engine: PaddedEngine, nodes: int, columns: int, reduction: LogitsReduction) -> None:
        self._engine, self._nodes, self._columns, self._reduction = engine, nodes, columns, reduction
        self._guesses: Sequence[tuple[int, int]] | None = None
        self.serves = True  # until another tree is proposed than the one scored

    def prepare(self, passes: TreePasses) -> None:
        """Run what a runner may capture."""
        passes.prepare_select(self._engine.passes, self._nodes + 1, self._columns)

    def queue(self, root: int, passes: TreePasses) -> None:
        """Select and score a tree below ``root`` without waiting."""
        self._engine.queue_tree(root, self._nodes, passes.select, self._reduction)

    def set_selected(self, guesses: Sequence[tuple[int, int]]) -> None:
        """Set the tokens and parents of the nodes that the device selected, in order."""
        self._guesses = guesses

    def take(self, tree: DraftTree) -> PassOutput | None:
        """Return the output for a tree, once; ``None`` if another one was scored, or none."""
        guesses, self._guesses = self._guesses, None
        if guesses is None:
            return None
        self.serves = list(zip(tree.tokens[1:], tree.parents[1:], strict=True)) == guesses
        if not self.serves:
            return None
        return self._engine.take_tree(tree.tokens, self._reduction)
