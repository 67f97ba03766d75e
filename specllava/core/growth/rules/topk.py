"""EAGLE-2's rule (arXiv 2406.16858): a beam, re-ranked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from specllava.core.growth.rule import RuleInfo, TopTokens, TreeBuilder
from specllava.core.growth.rules.scored import ScoredRule

BENCH_DEPTH, BENCH_NODES, BENCH_WIDTH = 10, 24, 2  # without a floor it goes down to the last level at every step


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


def _bench_options(config: Any) -> dict[str, Any]:
    return {
        "depth": min(BENCH_DEPTH, config.depth),
        "nodes": min(BENCH_NODES, config.nodes),
        "width": min(BENCH_WIDTH, config.width),
    }


TOPK: Final = RuleInfo(
    "topk", TopKRule, "a beam, re-ranked (EAGLE-2)", colour="#CC79A7", symbol="triangle-up", tuned=_bench_options
)
