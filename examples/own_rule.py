"""A tree rule of your own: a node gets its likeliest next tokens that together have half of the probability.

    python examples/own_rule.py

The target decides every token, so a rule changes the speed and never the answer (``docs/extending.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specllava import Pair
from specllava.spec_decode.growth import TopTokens, TreeBuilder
from specllava.spec_decode.rules import ScoredRule

PICTURE = Path(__file__).resolve().parents[1] / "assets" / "examples" / "1-describe.png"


@dataclass(frozen=True)
class NucleusRule(ScoredRule):
    """Give a node the fewest children that together have ``share`` of the draft's probability."""

    share: float = 0.5
    nodes: int = 20
    width: int = 4
    min_log_prob: float = -2.0

    name = "nucleus"
    max_children = 4

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return 1 + sum(total < self.share for total in cumulated(top.log_probs[:-1]))


def cumulated(log_probs: Sequence[float]) -> list[float]:
    return [sum(map(math.exp, log_probs[: end + 1])) for end in range(len(log_probs))]


if __name__ == "__main__":
    race = Pair.from_preset("toy").compare(PICTURE, "Describe this image in detail.", rule=NucleusRule())
    plain, fast = race["target-only"], race["speculative"]
    print(fast.text)
    print(f"{len(fast.steps)} passes instead of {len(plain.steps)}, equal: {plain.token_ids == fast.token_ids}")
