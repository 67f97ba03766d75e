"""The tree rules: each says who gets children, when to stop and what the target checks, and nothing else."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specllava.config import DecodingConfig, RuleName
from specllava.costs import CostAwareRule, Experience
from specllava.growth import GrowthRule, Guess, Sprout
from specllava.shapes import Shape, best_shape, fixed_shape
from specllava.tree import DraftTree


@dataclass(frozen=True, slots=True)
class _Scored:
    """What the rules that go by cumulative log-probability share: a beam, and the best nodes for the target.

    Args:
        width: nodes of one level that may grow children.
        nodes: nodes for the target at most.
        floor: nats; what scores less is neither followed nor kept.
    """

    width: int
    nodes: int
    floor: float

    def frontier(self, sprout: Sprout, level: Sequence[int]) -> list[int]:
        """The ``width`` best of the level that can still matter.

        Log-probabilities never rise along a path, so below a node that is not among the ``nodes`` best, nothing is.
        """
        floor = self.floor
        if len(sprout.scores) > self.nodes:
            floor = max(floor, heapq.nlargest(self.nodes, sprout.scores[1:])[-1])
        alive = [node for node in level if sprout.scores[node] >= floor]
        return heapq.nlargest(self.width, alive, key=lambda node: sprout.scores[node])

    def kept(self, sprout: Sprout) -> list[int]:
        """The ``nodes`` best by score; ties go to the elder, so parents are kept too."""
        worthy = [node for node in range(1, len(sprout.tokens)) if sprout.scores[node] >= self.floor]
        return sorted(sorted(worthy, key=lambda node: (-sprout.scores[node], node))[: self.nodes])

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Nothing: the rule is fixed."""


@dataclass(frozen=True, slots=True)
class EntropyRule(_Scored):
    """Spec-LLaVA: a sure node gets one child, an unsure one ``min(most, ceil(exp H))``, its number of real choices."""

    threshold: float
    most: int

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        return 1 if guess.entropy <= self.threshold else min(self.most, math.ceil(math.exp(guess.entropy)))


@dataclass(frozen=True, slots=True)
class ChainRule(_Scored):
    """One child each: the draft's single best guess, level after level."""

    most: int = 1

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class TopKRule(_Scored):
    """EAGLE-2 (arXiv 2406.16858): every node of the beam gets as many children as the beam is wide."""

    @property
    def most(self) -> int:
        return self.width

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        return self.width


@dataclass(slots=True)
class ShapeRule:
    """A tree whose shape is settled beforehand; the draft only fills in the words. See ``shapes``."""

    shape: Shape
    _shapes: dict[int, Shape] = field(default_factory=dict)

    @property
    def most(self) -> int:
        return _widest(self.shape)

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        if node == 0:
            self._shapes = {0: self.shape}
        return len(self._shapes[node])

    def frontier(self, sprout: Sprout, level: Sequence[int]) -> list[int]:
        for node in level:
            self._shapes[node] = self._shapes[sprout.parents[node]][sprout.ranks[node]]
        return [node for node in level if self._shapes[node]]

    def kept(self, sprout: Sprout) -> list[int]:
        return list(range(1, len(sprout.tokens)))

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Nothing: the shape is fixed."""


def _widest(shape: Shape) -> int:
    return max([len(shape), *map(_widest, shape)])


def growth_rule(config: DecodingConfig, known: Experience | None = None) -> GrowthRule:
    """The rule that a configuration names.

    Args:
        known: of the pair on this machine; only the cost-aware rule needs it, and adds to it.

    Raises:
        ValueError: the cost-aware rule without it.
    """
    rules: dict[RuleName, Callable[[], GrowthRule]] = {
        "entropy": lambda: EntropyRule(
            config.width, config.nodes, config.min_log_prob, config.entropy_threshold, config.max_branches
        ),
        "chain": lambda: ChainRule(1, config.nodes, config.min_log_prob),
        "fixed": lambda: ShapeRule(fixed_shape(config.branching, config.depth, config.nodes)),
        "topk": lambda: TopKRule(config.width, config.nodes, -math.inf),
        "sequoia": lambda: ShapeRule(best_shape(config.rank_acceptance, config.depth, config.nodes)),
        "cost-aware": lambda: _cost_aware(config, known),
    }
    return rules[config.rule]()


def _cost_aware(config: DecodingConfig, known: Experience | None) -> GrowthRule:
    if known is None:
        raise ValueError("the cost-aware rule needs the measured costs of the pair's passes")
    return CostAwareRule(known, config.width, config.nodes, config.max_branches)
