"""Shapes of trees that are fixed before decoding: as configured, node by node or by level, or the best one for measured
acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

Shape = tuple["Shape", ...]  # the shapes below each child, best guess first


def fixed_shape(branching: tuple[int, ...], depth: int, nodes: int) -> Shape:
    """Build the shape with ``branching[d]`` children of every node of level ``d`` (as Medusa's, arXiv 2401.10774).

    These are Cartesian trees. The tree ends at ``depth``, where ``branching`` ends, or at ``nodes`` nodes,
    counted level by level.
    """
    parents: list[int] = []
    level = [0]
    for wanted in branching[:depth]:
        below = [node for node in level for _ in range(wanted)][: nodes - len(parents)]
        level = list(range(len(parents) + 1, len(parents) + len(below) + 1))
        parents += below
    return drawn_shape(parents, depth, nodes)


def drawn_shape(parents: Sequence[int], depth: int, nodes: int) -> Shape:
    """Build the shape in which node ``i + 1`` is a child of node ``parents[i]``; node 0 is the root.

    Children of one parent keep their order. As a fixed shape, the tree ends at ``depth``, or at ``nodes`` nodes,
    counted level by level.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents, start=1):
        children[parent].append(node)
    counts: list[list[int]] = []  # children of each node, level by level
    left, here = nodes, [0]
    for _ in range(depth):
        level = []
        for node in here:
            level.append(min(len(children[node]), left))
            left -= level[-1]
        counts.append(level)
        here = [child for node, kept in zip(here, level, strict=True) for child in children[node][:kept]]
    shapes: list[Shape] = [()] * sum(counts[-1])
    for level in reversed(counts):
        below = iter(shapes)
        shapes = [tuple(next(below) for _ in range(count)) for count in level]
    return shapes[0]


def check_parents(parents: tuple[int, ...], max_children: int) -> tuple[int, ...]:
    """Return the parents of a tree's nodes below the root, as :func:`drawn_shape` takes them.

    Raises:
        ValueError: a parent that does not come before its child, or with more than ``max_children``.
    """
    children = [0] * (len(parents) + 1)
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            found = f"node {node} is below node {parent}"
            raise ValueError(f"{found}, but a parent comes first: 0, the root, to {node - 1}")
        children[parent] += 1
        if children[parent] > max_children:
            raise ValueError(f"node {parent} has more than {max_children} children: put some below another node")
    return parents


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
