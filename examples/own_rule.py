"""A tree rule of your own: a node gets its likeliest next tokens that together have half of the probability.

    PYTHONPATH=. python examples/own_rule.py

The target decides every token, so a rule changes the speed and never the answer (``docs/extending.md``).
"""

from __future__ import annotations

import math
from pathlib import Path

from specllava import Pair
from specllava.spec_decode.growth import TopTokens, TreeBuilder
from specllava.spec_decode.rules import ScoredRule

PICTURE = Path(__file__).resolve().parents[1] / "assets" / "examples" / "1-describe.png"


class NucleusRule(ScoredRule):
    """Give a node the fewest children that together have ``share`` of the draft's probability."""

    name = "nucleus"
    share = 0.5
    max_children = 4
    nodes, width, min_log_prob = 20, 4, -2.0

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        total = 0.0
        for count, log_prob in enumerate(top.log_probs, 1):
            total += math.exp(log_prob)
            if total >= self.share:
                return count
        return len(top.log_probs)


if __name__ == "__main__":
    race = Pair.from_preset("toy").compare(PICTURE, "Describe this image in detail.", rule=NucleusRule())
    plain, fast = race["target-only"], race["speculative"]
    print(fast.text)
    print(f"{len(fast.steps)} passes instead of {len(plain.steps)}, equal: {plain.token_ids == fast.token_ids}")
