"""Every outcome of chance with its probability, small worlds of target and draft, and the trees that grow in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from specllava.spec_decode.logits_processing import warpers
from specllava.spec_decode.rejection_sampler import SeededRandom, draw_children, verify_coupled, warp
from specllava.trace import Verification
from specllava.tree import ROOT_PARENT, DraftTree

T = TypeVar("T")
Prefix = tuple[int, ...]
Shape = tuple["Shape", ...]  # the children of a node, each a shape of its own
Verify = Callable[[DraftTree, Tensor, Tensor, SeededRandom], Verification]
Grow = Callable[[SeededRandom], DraftTree]

EXACT = 1e-9  # total variation that rounding may cause
ROOT_TOKEN = 0  # part of no prefix: it is the same for all trees


class Enumerating:
    """Random source that follows a script, then takes the first way that is open and remembers the others."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.others: list[tuple[int, ...]] = []
        self.weight = 1.0

    def accept(self, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0
        return bool(self._choose({1: probability, 0: 1.0 - probability}))

    def draw(self, probs: Tensor) -> int:
        assert float(probs.min()) >= 0.0 and float(probs.sum()) == pytest.approx(1.0, abs=1e-12)
        return self._choose(dict(enumerate(probs.tolist())))

    def _choose(self, ways: dict[int, float]) -> int:
        turn = len(self.taken)
        open_ways = [way for way, weight in ways.items() if weight > 0.0]
        if turn < len(self.script):
            way = self.script[turn]
        else:
            way = open_ways[0]
            self.others += [(*self.taken, other) for other in open_ways[1:]]
        self.taken.append(way)
        self.weight *= ways[way]
        return way


def outcomes(run: Callable[[SeededRandom], T]) -> Iterator[tuple[T, float]]:
    """Every outcome of ``run`` and its exact probability."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chance = Enumerating(scripts.pop())
        yield run(chance), chance.weight
        scripts += chance.others


@dataclass(frozen=True)
class World:
    """A random target and draft whose distributions depend on the whole prefix."""

    seed: int = 0
    vocabulary: int = 3
    top_p: float = 1.0
    top_k: int = 0
    draft_top_k: int = 0
    same: bool = False

    def target(self, prefix: Prefix) -> Tensor:
        return random_probs((self.seed, 1, *prefix), self.vocabulary, self.top_p, self.top_k)

    def draft(self, prefix: Prefix) -> Tensor:
        if self.same:
            return self.target(prefix)
        return random_probs((self.seed, 2, *prefix), self.vocabulary, 1.0, self.draft_top_k)


@cache
def random_probs(key: tuple[int, ...], vocabulary: int, top_p: float, top_k: int) -> Tensor:
    logits = np.random.default_rng((len(key), *key)).normal(scale=1.5, size=(1, vocabulary))
    return warp(torch.from_numpy(logits), warpers(1.0, top_p, top_k))[0]


@cache
def ahead(world: World, prefix: Prefix, length: int) -> npt.NDArray[np.float64]:
    """The target's joint distribution of the next ``length`` tokens, one axis each."""
    if length == 0:
        return np.array(1.0)
    probs = world.target(prefix).tolist()
    return np.stack([prob * ahead(world, (*prefix, token), length - 1) for token, prob in enumerate(probs)])


def prefix_of(tree: DraftTree, node: int) -> Prefix:
    return tuple(tree.tokens[n] for n in tree.path(node)[1:])


def rows(tree: DraftTree, probs: Callable[[Prefix], Tensor]) -> Tensor:
    return torch.stack([probs(prefix_of(tree, node)) for node in range(len(tree))])


def make_tree(tokens: Sequence[int], parents: Sequence[int]) -> DraftTree:
    """A tree below the root token; verification reads nothing but tokens and parents."""
    nodes = len(tokens) + 1
    return DraftTree((ROOT_TOKEN, *tokens), (ROOT_PARENT, *parents), (0.0,) * nodes, (None,) * nodes)


def grow(shape: Shape, pick: Callable[[Prefix, int], Sequence[int]], end: int | None = None) -> DraftTree:
    """Level by level, children as the shape has them, or as many as ``pick`` gives; none after ``end``."""
    tokens: list[int] = []
    parents: list[int] = []
    level: list[tuple[int, Prefix, Shape]] = [(0, (), shape)]
    while level:
        below = []
        for node, prefix, shapes in level:
            for token, child in zip(pick(prefix, len(shapes)), shapes, strict=False):
                tokens.append(token)
                parents.append(node)
                below.append((len(tokens), (*prefix, token), () if token == end else child))
        level = below
    return make_tree(tokens, parents)


def drawn(world: World, shape: Shape, end: int | None = None) -> Grow:
    return lambda chance: grow(shape, lambda prefix, count: draw_children(world.draft(prefix), count, chance), end)


def chosen(world: World, shape: Shape) -> Grow:
    return lambda chance: grow(shape, lambda prefix, count: world.draft(prefix).topk(count).indices.tolist())


def coupled(tree: DraftTree, probs: Tensor, draft_probs: Tensor, chance: SeededRandom) -> Verification:
    return verify_coupled(tree, probs, chance)


@dataclass
class Tally:
    """What a step emits, over every outcome of growing and of verifying."""

    distribution: npt.NDArray[np.float64]
    weight: float = 0.0
    accepted: float = 0.0

    def off(self, world: World) -> float:
        """Total variation to the target's own distribution."""
        assert self.weight == pytest.approx(1.0, abs=1e-9)
        return float(np.abs(self.distribution - ahead(world, (), self.distribution.ndim)).sum() / 2)


def tally(world: World, grower: Grow, verify: Verify) -> Tally:
    """Sequences are completed to the longest one's length by the target itself, so that they can be compared."""
    grown = list(outcomes(grower))
    length = 1 + max(depth for tree, _ in grown for depth in tree.depths())
    result = Tally(np.zeros((world.vocabulary,) * length))
    for tree, tree_weight in grown:
        probs, draft_probs = rows(tree, world.target), rows(tree, world.draft)
        for verdict, weight in outcomes(lambda chance: verify(tree, probs, draft_probs, chance)):  # noqa: B023
            emitted = (*prefix_of(tree, verdict.path[-1]), verdict.bonus_token)
            share = tree_weight * weight
            result.distribution[emitted] += share * ahead(world, emitted, length - len(emitted))
            result.weight += share
            result.accepted += share * len(verdict.accepted)
    return result


