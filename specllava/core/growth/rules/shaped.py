"""Rules whose tree has a shape that is settled beforehand (``growth.shapes``); the draft fills in the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from specllava.core.growth.rule import GrowthRule, RuleInfo, TopTokens, TreeBuilder, capped
from specllava.core.growth.shapes import Shape, best_shape, fixed_shape

BENCH_OPTIONS: Final = capped(depth=10, nodes=8, width=4)  # without a floor sequoia grows all levels


@dataclass(kw_only=True)
class ShapedRule(GrowthRule):
    """Grow the tree of one shape, whatever the tokens are."""

    drawable = True
    _settled: Shape = field(init=False, repr=False)  # below the root
    _widest: int = field(init=False, repr=False)  # children of any node of the shape at most
    _shapes: dict[int, Shape] = field(default_factory=dict, init=False, repr=False)  # below each node of the tree

    def _settle(self, shape: Shape) -> None:
        self._settled, self._widest = shape, _widest(shape)

    @property
    def max_children(self) -> int:
        return self._widest

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        if node == 0:
            self._shapes = {0: self._settled}
        return len(self._shapes[node])

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        for node in level:
            self._shapes[node] = self._shapes[builder.parents[node]][builder.ranks[node]]
        return [node for node in level if self._shapes[node]]

    def select(self, builder: TreeBuilder) -> list[int]:
        return list(range(1, len(builder.tokens)))


@dataclass(kw_only=True)
class FixedRule(ShapedRule):
    """Give every node of level ``d`` ``branching[d]`` children (Medusa, arXiv 2401.10774)."""

    branching: tuple[int, ...]
    depth: int
    nodes: int

    name = "fixed"

    def __post_init__(self) -> None:
        self._settle(fixed_shape(self.branching, self.depth, self.nodes))


@dataclass(kw_only=True)
class SequoiaRule(ShapedRule):
    """Grow the shape with the most accepted tokens to be expected (Sequoia, arXiv 2402.12374)."""

    rank_acceptance: tuple[float, ...]
    depth: int
    nodes: int

    name = "sequoia"

    def __post_init__(self) -> None:
        self._settle(best_shape(self.rank_acceptance, self.depth, self.nodes))


def _widest(shape: Shape) -> int:
    return max([len(shape), *map(_widest, shape)])


FIXED: Final = RuleInfo(
    "fixed", FixedRule, "so many children per level (Medusa)", colour="#009E73", symbol="diamond"
)
SEQUOIA: Final = RuleInfo(
    "sequoia",
    SequoiaRule,
    "the best shape for measured acceptance",
    colour="#56B4E9",
    symbol="x",
    bench_options=BENCH_OPTIONS,
)
