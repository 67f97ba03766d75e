"""Spec-LLaVA's rule (arXiv 2509.11961): branch where the draft is unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from specllava.core.growth.rule import RuleInfo, TopTokens, TreeBuilder
from specllava.core.growth.rules.scored import ScoredRule


@dataclass(frozen=True)
class EntropyRule(ScoredRule):
    """Give a sure node one child and an unsure one ``min(max_branches, ceil(exp H))``, its number of real choices."""

    width: int
    nodes: int
    min_log_prob: float
    entropy_threshold: float
    max_branches: int

    name = "entropy"

    @property
    def max_children(self) -> int:
        return self.max_branches

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        if top.entropy <= self.entropy_threshold:
            return 1
        return min(self.max_branches, math.ceil(math.exp(top.entropy)))


ENTROPY: Final = RuleInfo(
    "entropy", EntropyRule, "branch where the draft is unsure (Spec-LLaVA)", colour="#0072B2", symbol="circle"
)
