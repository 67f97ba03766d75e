"""The tree rules that the package offers. Each is built of options of ``DecodingConfig``, by their names."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.spec_decode.growth import GrowthRule, TopTokens, TreeBuilder
from specllava.trace_fields import retired_rule

Shape = tuple["Shape", ...]  # the shapes below each child, best guess first


class ScoredRule(GrowthRule):
    """Expand the ``width`` best nodes of a level and select the ``nodes`` best of the tree.

    A rule that inherits from it only decides how many children a node gets. Nodes with a score below ``min_log_prob``
    (nats) are neither expanded nor selected.
    """

    nodes: int
    width: int
    min_log_prob: float

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        """Return the ``width`` best of the level that can still matter.

        Log-probabilities never rise along a path, so below a node that is not among the ``nodes`` best, nothing is.
        """
        floor = self.min_log_prob
        if len(builder.scores) > self.nodes:
            floor = max(floor, heapq.nlargest(self.nodes, builder.scores[1:])[-1])
        alive = [node for node in level if builder.scores[node] >= floor]
        return heapq.nlargest(self.width, alive, key=lambda node: builder.scores[node])

    def select(self, builder: TreeBuilder) -> list[int]:
        """Return the ``nodes`` best by score; ties go to the elder, so parents are selected too."""
        above = [node for node in range(1, len(builder.tokens)) if builder.scores[node] >= self.min_log_prob]
        return sorted(sorted(above, key=lambda node: (-builder.scores[node], node))[: self.nodes])


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


@dataclass(frozen=True)
class ChainRule(ScoredRule):
    """Give every node one child: the draft's single best guess, level after level."""

    nodes: int
    min_log_prob: float

    name = "chain"
    width = max_children = 1

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return 1


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


class ShapedRule(GrowthRule):
    """Grow the tree of one shape, cut where a guess ends the answer."""

    name, max_children, drawable = "", 0, True

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self._shape, self.max_children = name, shape, _max_children(shape)
        self._shapes: dict[int, Shape] = {}  # below each node of the tree

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        if node == 0:
            self._shapes = {0: self._shape}
        return len(self._shapes[node])

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        for node in level:
            self._shapes[node] = self._shapes[builder.parents[node]][builder.ranks[node]]
        return [node for node in level if self._shapes[node]]

    def select(self, builder: TreeBuilder) -> list[int]:
        return list(range(1, len(builder.tokens)))


def _max_children(shape: Shape) -> int:
    return max([len(shape), *map(_max_children, shape)])


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


RULES: Final[Mapping[str, Callable[..., GrowthRule]]] = MappingProxyType({
    "entropy": EntropyRule,
    "chain": ChainRule,
    "fixed": lambda branching, depth, nodes: ShapedRule("fixed", fixed_shape(branching, depth, nodes)),
    "topk": TopKRule,
    "sequoia": lambda rank_acceptance, depth, nodes: ShapedRule("sequoia", best_shape(rank_acceptance, depth, nodes)),
})


def build_rule(config: DecodingConfig) -> GrowthRule:
    """Build the rule that a configuration names.

    Raises:
        ValueError: a rule that is not known here, as in a file of another version.
    """
    if config.rule not in RULES:
        raise ValueError(retired_rule(config.rule))
    return RULES[config.rule](**{name: getattr(config, name) for name in RULE_CHOICES[config.rule].options})
