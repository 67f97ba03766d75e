"""Shapes of trees that are settled before decoding: as configured, or the best one for measured acceptance."""

from __future__ import annotations

from functools import cache, lru_cache

Shape = tuple["Shape", ...]  # the shapes below each child, best guess first


def fixed_shape(branching: tuple[int, ...], depth: int, nodes: int) -> Shape:
    """Every node of level ``d`` gets ``branching[d]`` children (as Medusa's Cartesian trees, arXiv 2401.10774).

    The tree ends at ``depth``, where ``branching`` ends, or at ``nodes`` nodes, counted level by level.
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
    """The shape of ``nodes`` nodes with the most accepted tokens to be expected, by dynamic programming.

    Sequoia (arXiv 2402.12374, section 4.1): the child of rank ``r`` is the target's choice with probability
    ``acceptance[r]``, wherever it stands.
    """

    @cache
    def below(budget: int, levels: int, rank: int) -> tuple[float, Shape]:
        """Best use of ``budget`` nodes for the children of rank ``rank`` and higher of one node."""
        best: tuple[float, Shape] = (0.0, ())
        if levels == 0 or rank == len(acceptance):
            return best
        for own in range(1, budget + 1):
            gain, children = below(own - 1, levels - 1, 0)
            rest, siblings = below(budget - own, levels, rank + 1)
            value = acceptance[rank] * (1 + gain) + rest
            if value > best[0]:
                best = value, (children, *siblings)
        return best

    return below(nodes, depth, 0)[1]
