"""EAGLE-2's rule (arXiv 2406.16858): a beam, re-ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from specllava.core.growth.rule import RuleInfo, TopTokens, TreeBuilder, capped
from specllava.core.growth.rules.scored import ScoredRule

BENCH_OPTIONS: Final = capped(depth=10, nodes=24, width=2)  # without a floor it grows all levels


@dataclass(frozen=True)
class TopKRule(ScoredRule):
    """Give every node of the beam as many children as the beam is wide."""

    width: int
    nodes: int

    name = "topk"
    min_log_prob = -math.inf

    @property
    def max_children(self) -> int:
        return self.width

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self.width


def eagle2_tree(depth: int, top_k: int, total: int) -> dict[str, Any]:
    """Return the options of this rule that grow what EAGLE-2's authors call by three numbers, as MSD's and ViSpec's do.

    Their depth counts the passes after the root's, each of which makes one more level; their total counts the root.
    """
    return {"rule": TopKRule.name, "depth": depth + 1, "width": top_k, "nodes": total - 1}


TOPK: Final = RuleInfo(
    "topk", TopKRule, "a beam, re-ranked (EAGLE-2)", colour="#CC79A7", symbol="triangle-up", bench_options=BENCH_OPTIONS
)
