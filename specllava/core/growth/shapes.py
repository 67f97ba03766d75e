"""Shapes of trees that are fixed before decoding: as configured by level, or the best one for measured acceptance."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

Shape = tuple["Shape", ...]  # the shapes below each child, best guess first


def fixed_shape(branching: tuple[int, ...], depth: int, nodes: int) -> Shape:
    """Build the shape with ``branching[d]`` children of every node of level ``d`` (as Medusa's, arXiv 2401.10774).

    These are Cartesian trees. The tree ends at ``depth``, where ``branching`` ends, or at ``nodes`` nodes,
    counted level by level.
    """
    counts: list[list[int]] = []  # children of each node, level by level
    left, here = nodes, 1
    for wanted in branching[:depth]:
        level = []
        for _ in range(here):
            level.append(min(wanted, left))
            left -= level[-1]
        counts.append(level)
        here = sum(level)
    shapes: list[Shape] = [()] * here
    for level in reversed(counts):
        below = iter(shapes)
        shapes = [tuple(next(below) for _ in range(count)) for count in level]
    return shapes[0]


@lru_cache(maxsize=64)
def best_shape(acceptance: tuple[float, ...], depth: int, nodes: int) -> Shape:
    """Return the shape of ``nodes`` nodes with the most expected accepted tokens, by dynamic programming.

    Sequoia (arXiv 2402.12374, section 4.1): the child of rank ``r`` is accepted with probability ``acceptance[r]``,
    wherever it is.
    """
    ranks = len(acceptance)
    values = np.zeros((depth + 1, ranks + 1, nodes + 1))  # of the children from a rank on, by levels and budget
    owns = np.zeros(values.shape, dtype=int)  # nodes for the first of them and all below it; 0: there is none
    for levels in range(1, depth + 1):
        for rank in reversed(range(ranks)):
            below, beside = values[levels - 1, 0], values[levels, rank + 1]
            for budget in range(1, nodes + 1):
                own = acceptance[rank] * (1 + below[:budget]) + beside[budget - 1 :: -1]
                best = int(own.argmax())
                if own[best] > 0:
                    values[levels, rank, budget], owns[levels, rank, budget] = own[best], best + 1

    def shape(budget: int, levels: int, rank: int) -> Shape:
        own = int(owns[levels, rank, budget])
        return (shape(own - 1, levels - 1, 0), *shape(budget - own, levels, rank + 1)) if own else ()

    return shape(nodes, depth, 0)
