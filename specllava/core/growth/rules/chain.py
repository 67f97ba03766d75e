"""Classic speculative decoding: a chain of the draft's best guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specllava.core.growth.rule import RuleInfo, TopTokens, TreeBuilder
from specllava.core.growth.rules.scored import ScoredRule

BENCH_FLOOR = -1.0  # nats; a chain stops sooner than a tree
CHAIN_OPTIONS: Final = {"rule": "chain", "min_log_prob": BENCH_FLOOR}  # the chain that trees are compared with


@dataclass(frozen=True)
class ChainRule(ScoredRule):
    """Give every node one child: the draft's single best guess, level after level."""

    nodes: int
    min_log_prob: float

    name = "chain"
    width = 1

    @property
    def max_children(self) -> int:
        return 1

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return 1


CHAIN: Final = RuleInfo(
    "chain",
    ChainRule,
    "one best guess after the other",
    colour="#D55E00",
    symbol="square",
    bench_options=lambda config: {"min_log_prob": max(BENCH_FLOOR, config.min_log_prob)},
)
