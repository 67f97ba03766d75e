"""What rules share that go by cumulative log-probability: a beam, and the best nodes for the target."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from specllava.core.growth.rule import GrowthRule, TreeBuilder


class ScoredRule(GrowthRule):
    """Expand the ``width`` best nodes of a level and select the ``nodes`` best of the tree.

    A rule that inherits from it only decides how many children a node gets. Nodes with a score below ``min_log_prob``
    (nats) are neither expanded nor selected.
    """

    nodes: int
    width: int
    min_log_prob: float

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        """Return the ``width`` best of the level that can still matter.

        Log-probabilities never rise along a path, so below a node that is not among the ``nodes`` best, nothing is.
        """
        floor = self.min_log_prob
        if len(builder.scores) > self.nodes:
            floor = max(floor, heapq.nlargest(self.nodes, builder.scores[1:])[-1])
        alive = [node for node in level if builder.scores[node] >= floor]
        return heapq.nlargest(self.width, alive, key=lambda node: builder.scores[node])

    def select(self, builder: TreeBuilder) -> list[int]:
        """Return the ``nodes`` best by score; ties go to the elder, so parents are selected too."""
        above = [node for node in range(1, len(builder.tokens)) if builder.scores[node] >= self.min_log_prob]
        return sorted(sorted(above, key=lambda node: (-builder.scores[node], node))[: self.nodes])
