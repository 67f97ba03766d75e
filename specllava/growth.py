"""How a draft tree grows. Asks a model only through ``expand``; the rules see log-probabilities, nothing else.

Growth goes level by level. The loop is one for all rules: a rule says only how many children a node gets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specllava.config import DecodingConfig, RuleName
from specllava.tree import ROOT_PARENT, DraftTree


@dataclass(frozen=True, slots=True)
class Guess:
    """The draft's next-token distribution after one node, as far as growth needs it.

    Args:
        tokens: most likely tokens, best first.
        log_probs: their log-probabilities in nats.
        entropy: of the whole distribution, in nats.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    entropy: float


# Node ids of a level, their tokens and their parents' ids, to a guess each.
Expand = Callable[[Sequence[int], Sequence[int], Sequence[int]], list[Guess]]


class GrowthRule(Protocol):
    """Who gets children, and how many."""

    @property
    def most(self) -> int:
        """The largest number of children that the rule may ask for."""
        ...

    def branches(self, entropy: float) -> int:
        """Children of a node after which the draft's entropy is ``entropy`` nats."""
        ...


@dataclass(frozen=True, slots=True)
class EntropyRule:
    """Spec-LLaVA: a sure node gets one child, an unsure one ``min(most, ceil(exp H))``, its number of real choices."""

    threshold: float
    most: int

    def branches(self, entropy: float) -> int:
        return 1 if entropy <= self.threshold else min(self.most, math.ceil(math.exp(entropy)))


@dataclass(frozen=True, slots=True)
class ChainRule:
    """One child each: the draft's single best guess, level after level."""

    most: int = 1

    def branches(self, entropy: float) -> int:
        return 1


def growth_rule(config: DecodingConfig) -> GrowthRule:
    """The rule that a configuration names."""
    rules: dict[RuleName, GrowthRule] = {
        "entropy": EntropyRule(config.entropy_threshold, config.max_branches),
        "chain": ChainRule(),
    }
    return rules[config.rule]


@dataclass(slots=True)
class _Sprout:
    """A tree under construction."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    log_probs: list[float] = field(default_factory=lambda: [0.0])
    scores: list[float] = field(default_factory=lambda: [0.0])
    entropies: list[float | None] = field(default_factory=lambda: [None])

    def add(self, token: int, parent: int, log_prob: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.log_probs.append(log_prob)
        self.scores.append(self.scores[parent] + log_prob)
        self.entropies.append(None)
        return len(self.tokens) - 1

    def worst_kept(self, budget: int) -> float:
        """Score that a guess must beat to be among the ``budget`` best."""
        if len(self.scores) <= budget:
            return -math.inf
        return heapq.nlargest(budget, self.scores[1:])[-1]


def grow(
    root: int, expand: Expand, rule: GrowthRule, config: DecodingConfig, depth: int
) -> tuple[DraftTree, list[int]]:
    """Grow a tree below ``root`` and keep its best nodes.

    A level's ``width`` best nodes by cumulative log-probability may grow children; growth ends at ``depth``
    or when no node is left that could still matter: log-probabilities never rise along a path, so below a
    node that is not among the ``nodes`` best, nothing is.

    Args:
        expand: called once per level with nodes whose parents were expanded before.
        depth: levels at most; the caller's room may be smaller than ``config.depth``.

    Returns:
        The tree, and for each of its nodes the number that ``expand`` knew it by.
    """
    sprout = _Sprout([root])
    frontier = [0]
    for _ in range(depth):
        level: list[int] = []
        asked = expand(frontier, [sprout.tokens[n] for n in frontier], [sprout.parents[n] for n in frontier])
        for node, guess in zip(frontier, asked, strict=True):
            sprout.entropies[node] = guess.entropy
            wanted = rule.branches(guess.entropy)
            for token, log_prob in zip(guess.tokens[:wanted], guess.log_probs[:wanted], strict=True):
                level.append(sprout.add(token, node, log_prob))
        floor = max(config.min_log_prob, sprout.worst_kept(config.nodes))
        alive = [node for node in level if sprout.scores[node] >= floor]
        frontier = heapq.nlargest(config.width, alive, key=lambda node: sprout.scores[node])
        if not frontier:
            break
    return _prune(sprout, config)


def _prune(sprout: _Sprout, config: DecodingConfig) -> tuple[DraftTree, list[int]]:
    """The ``nodes`` best by score, in the order in which they grew; ties go to the elder, so parents are kept too."""
    worthy = [node for node in range(1, len(sprout.tokens)) if sprout.scores[node] >= config.min_log_prob]
    best = sorted(worthy, key=lambda node: (-sprout.scores[node], node))[: config.nodes]
    kept = [0, *sorted(best)]
    place = {node: index for index, node in enumerate(kept)} | {ROOT_PARENT: ROOT_PARENT}
    tree = DraftTree(
        tokens=tuple(sprout.tokens[node] for node in kept),
        parents=tuple(place[sprout.parents[node]] for node in kept),
        log_probs=tuple(round(sprout.log_probs[node], 7) for node in kept),
        entropies=tuple(None if (e := sprout.entropies[node]) is None else round(e, 7) for node in kept),
    )
    return tree, kept
