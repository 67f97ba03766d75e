"""Depth and size of a tree for measured passes: the most expected tokens per second under a stated acceptance.

A guess of rank r is accepted with a probability that depends on r alone (Sequoia, arXiv 2402.12374). The best guess's
is given; the next takes half of what is left, and so on. So it is arithmetic on measured times, not a measured draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

from specllava.core.growth.shapes import Shape, best_shape

SURENESS: Final = (0.6, 0.7, 0.8)  # probabilities that the best guess is accepted
RANKS: Final = 6
DEEPEST: Final = 12
_best_shape = cache(best_shape)  # the report asks for all of them again after each part


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Options of a tree.

    Args:
        tau: expected tokens of a step.
        seconds: of a step.
    """

    depth: int
    nodes: int
    tau: float
    seconds: float


def suggest_tree(target: Mapping[int, float], level: float, acceptance: Sequence[float]) -> Suggestion:
    """Return the depth and nodes whose best shape brings the most expected tokens per second.

    Args:
        target: seconds of the target's pass by the rows that passes are padded to.
        level: seconds that a level of the draft adds to a step, the host's part with it.
        acceptance: probability by rank that a child is accepted, where its parent is.
    """
    found = []
    for depth, rows in product(range(1, DEEPEST + 1), sorted(target)):
        if rows > 1:
            shape = _best_shape(tuple(acceptance), depth, rows - 1)
            seconds = depth_of(shape) * level + target[rows]
            found.append(Suggestion(depth_of(shape), rows - 1, 1 + expected(shape, acceptance), seconds))
    return max(found, key=lambda one: one.tau / one.seconds)  # the shallowest and smallest of equals


def acceptance_by_rank(best: float) -> tuple[float, ...]:
    """Return acceptance by rank: the best guess's, then half of what is left each time."""
    return (best, *((1 - best) / 2**rank for rank in range(1, RANKS)))


def expected(shape: Shape, acceptance: Sequence[float]) -> float:
    """Return the expected number of accepted guesses of a shape."""
    chances = zip(acceptance, shape, strict=False)
    return sum(chance * (1 + expected(below, acceptance)) for chance, below in chances)


def depth_of(shape: Shape) -> int:
    """Return the levels of a shape below its root."""
    return 1 + max(map(depth_of, shape)) if shape else 0
