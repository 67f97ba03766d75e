"""The cost-aware rule: a node is worth what it saves. Costs are measured, acceptance is learnt while decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from specllava.core.growth.cost_model import CostModel, Costs
from specllava.core.growth.rule import GrowthRule, RuleInfo, TopTokens, TreeBuilder
from specllava.core.tree import DraftTree

BENCH_OPTIONS: Final = {"nodes": 64, "depth": 16}  # it has limits of its own


@dataclass(slots=True)
class CostAwareRule(GrowthRule):
    """Grow while a level promises more than it costs, and select what the target's pass is worth.

    Args:
        cost_model: of the pair on this machine; is updated.
        width, nodes: limits of a level and of a tree.
        max_branches: children of a node at most.
    """

    cost_model: CostModel
    width: int
    nodes: int
    max_branches: int
    _probs: list[float] = field(default_factory=lambda: [1.0], init=False)  # P_v of the tree that is growing
    _widths: list[int] = field(default_factory=list, init=False)  # of its levels
    _prices: tuple[float, float] = field(default=(0.0, 0.0), init=False)  # per second of drafting, of verifying
    _column: float = field(default=0.0, init=False)  # seconds that a node adds to a verification at the least
    _least: float = field(default=0.0, init=False)  # probability below which a node is worth that in no tree

    name = "cost-aware"

    def __post_init__(self) -> None:
        verify = self.cost_model.costs.verify
        self._column = min((after - before for before, after in pairwise(verify)), default=0.0)

    @property
    def max_children(self) -> int:
        return self.max_branches

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        """Return how many have a probability worth a column; at least one, which ``select`` may drop."""
        if node == 0:
            self._begin()
        calibration, before = self.cost_model.calibration, self._probs[node]
        for rank, log_prob in enumerate(top.log_probs[: self.max_branches]):
            prob = before * calibration.probability(math.exp(log_prob), best=rank == 0)
            if rank and prob < self._least:
                return rank
            self._probs.append(prob)
        return self.max_branches

    def _begin(self) -> None:
        self._probs, self._widths = [1.0], [1]
        self._prices = self.cost_model.prices_per_second
        self._least = self._prices[1] * self._column

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        """Return the best nodes of the level: one more as long as that raises the balance of tokens and seconds.

        Looking one level ahead is enough: promises shrink from level to level and the cost does not. A node promises
        its own probability times the hit rate of children, best guess or not: in doubt both are kept.
        """
        hit_rate, costs, (draft_price, verify_price) = self.cost_model.hit_rate, self.cost_model.costs, self._prices
        held = min(len(self._probs) - 1, self.nodes)
        before = costs.verify_seconds(held)
        promise, best_gain, count = 0.0, 0.0, 0
        best = sorted(level, key=lambda node: -self._probs[node])[: self.width]
        for width, node in enumerate(best, start=1):
            promise += hit_rate * self._probs[node]
            verifying = verify_price * (costs.verify_seconds(held + width) - before)
            gain = promise - draft_price * costs.level_seconds(width) - verifying
            if gain <= best_gain:
                break
            best_gain, count = gain, width
        self._widths += [count] if count else []
        return best[:count]

    def select(self, builder: TreeBuilder) -> list[int]:
        """Return nodes by falling probability, as many as balance best; ties go to the elder, so to parents."""
        order = sorted(range(1, len(builder.tokens)), key=lambda node: (-self._probs[node], node))[: self.nodes]
        probs = [self._probs[node] for node in order]
        return sorted(order[: best_count(probs, self._prices[1], self.cost_model.costs)])

    def update(self, tree: DraftTree, path: Sequence[int]) -> None:
        self.cost_model.update(tree, path, self._widths)

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        self.cost_model.observe(draft_seconds, target_seconds)


def best_count(probs: Sequence[float], price: float, costs: Costs) -> int:
    """Return how many of falling ``probs`` are worth verifying: the best ``sum(probs) - price * seconds``."""
    total, best, count = 0.0, -price * costs.verify_seconds(0), 0
    for number, prob in enumerate(probs, start=1):
        total += prob
        if (balance := total - price * costs.verify_seconds(number)) > best:
            best, count = balance, number
    return count


COST_AWARE: Final = RuleInfo(
    "cost-aware",
    CostAwareRule,
    "whatever pays on this machine, learnt while decoding",
    colour="#E69F00",
    symbol="star",
    bench_options=lambda config: BENCH_OPTIONS,
)
