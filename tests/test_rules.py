"""The rules' choices against brute force: no other tree of the same kind is better."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.eagle2 import Path, Scores, best, random_scores, verified_paths
from test_growth import ROOT, Table, limits, tables

from specllava.core.config import RULES, DecodingConfig
from specllava.core.growth.grow import GrowthLimits, grow
from specllava.core.growth.rule import TopTokens
from specllava.core.growth.rules import build_rule
from specllava.core.growth.rules.topk import eagle2_tree
from specllava.core.growth.shapes import Shape, best_shape, fixed_shape
from specllava.core.tree import DraftTree


def expected_accepted(shape: Shape, acceptance: tuple[float, ...]) -> float:
    """Accepted tokens per step that a shape promises."""
    return sum(
        chance * (1 + expected_accepted(child, acceptance)) for chance, child in zip(acceptance, shape, strict=False)
    )


def size(shape: Shape) -> int:
    """Nodes of a shape, its root left out."""
    return sum(1 + size(child) for child in shape)


def shapes(nodes: int, depth: int, most: int) -> Iterator[Shape]:
    """Every shape of at most ``nodes`` nodes."""
    yield ()
    if depth == 0 or most == 0:
        return
    for count in range(1, min(nodes, most) + 1):
        for sizes in itertools.product(range(nodes - count + 1), repeat=count):
            if sum(sizes) + count <= nodes:
                families = [[s for s in shapes(n, depth - 1, most) if size(s) == n] for n in sizes]
                yield from itertools.product(*families)


@given(
    st.lists(st.floats(0.01, 0.9), min_size=1, max_size=3).map(lambda values: tuple(sorted(values, reverse=True))),
    st.integers(1, 3),
    st.integers(1, 6),
)
@settings(max_examples=30, deadline=None)
def test_sequoias_shape_promises_more_than_any_other(acceptance: tuple[float, ...], depth: int, nodes: int):
    best = best_shape(acceptance, depth, nodes)
    promise = max(expected_accepted(shape, acceptance) for shape in shapes(nodes, depth, len(acceptance)))
    assert size(best) <= nodes
    assert expected_accepted(best, acceptance) == pytest.approx(promise)


@pytest.mark.parametrize(
    ("branching", "depth", "nodes", "shape"),
    [
        ((2, 1), 9, 99, (((),), ((),))),
        ((2, 1), 1, 99, ((), ())),
        ((2, 1), 9, 3, (((),), ())),
        ((3,), 9, 2, ((), ())),
        ((1, 1, 1), 2, 99, (((),),)),
    ],
)
def test_a_fixed_shape_by_hand(branching: tuple[int, ...], depth: int, nodes: int, shape: Shape):
    assert fixed_shape(branching, depth, nodes) == shape


@given(tables, st.integers(1, 3), st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=60)
def test_a_shaped_tree_has_its_shape_and_the_best_guesses(table: Table, depth: int, widest: int, nodes: int):
    config = DecodingConfig(rule="fixed", branching=(widest, 2, 1), depth=depth, nodes=nodes)
    tree = grow(ROOT, table.expand, build_rule(config), limits(depth)).tree

    def shape_of(node: int) -> Shape:
        return tuple(shape_of(child) for child in tree.children()[node])

    assert shape_of(0) == fixed_shape(config.branching, depth, nodes)
    for node, family in enumerate(tree.children()):
        best = table.guess(tuple(tree.tokens[n] for n in tree.path(node))).tokens
        assert [tree.tokens[child] for child in family] == list(best)[: len(family)]


@given(tables, st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_topk_keeps_the_most_probable_subtree(table: Table, depth: int, width: int, nodes: int):
    """Of everything that the beam saw, no other set of nodes closed under parents has a larger sum of probabilities."""
    rule = build_rule(DecodingConfig(rule="topk", width=width, nodes=nodes))
    wide = build_rule(DecodingConfig(rule="topk", width=width, nodes=256))
    tree = grow(ROOT, table.expand, rule, limits(depth)).tree
    everything = grow(ROOT, Table(table.seed, table.sharpness).expand, wide, limits(depth)).tree
    best = max(closed_sums(everything, nodes))
    assert sum(map(math.exp, tree.scores()[1:])) == pytest.approx(best, abs=1e-5)


def closed_sums(tree: DraftTree, nodes: int) -> Iterator[float]:
    """Sum of probabilities of every subset of at most ``nodes`` nodes that holds each node's parent."""
    chances = [math.exp(score) for score in tree.scores()]

    def extend(node: int, chosen: frozenset[int], total: float) -> Iterator[float]:
        yield total
        for later in range(node, len(tree)):
            if len(chosen) < nodes and tree.parents[later] in chosen | {0}:
                yield from extend(later + 1, chosen | {later}, total + chances[later])

    return extend(1, frozenset(), 0.0)


def test_every_rule_of_the_configuration_grows():
    for name in RULES:
        tree = grow(ROOT, Table(1, 2.0).expand, build_rule(DecodingConfig(rule=name)), limits(4)).tree
        assert tree.drafted > 0, name


def plain_best(acceptance: tuple[float, ...], depth: int, nodes: int) -> float:
    """Accepted tokens of the best shape, by Sequoia's recursion as it is written."""

    @cache
    def children(rank: int, levels: int, budget: int) -> float:
        if rank == len(acceptance) or levels == 0:
            return 0.0
        best = 0.0
        for own in range(1, budget + 1):
            below = acceptance[rank] * (1.0 + children(0, levels - 1, own - 1))
            best = max(best, below + children(rank + 1, levels, budget - own))
        return best

    return children(0, depth, nodes)


def measured(shape: Shape) -> tuple[int, int]:
    """Nodes and levels below the root."""
    below = [measured(child) for child in shape]
    return sum(1 + nodes for nodes, _ in below), max((1 + levels for _, levels in below), default=0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 24))
@settings(max_examples=60)
def test_the_best_shape_is_that_of_the_plain_recursion(acceptance: list[float], depth: int, nodes: int):
    shares = tuple(sorted(acceptance, reverse=True))
    shape = best_shape(shares, depth, nodes)
    size, levels = measured(shape)
    assert size <= nodes and levels <= depth
    assert expected_accepted(shape, shares) == pytest.approx(plain_best(shares, depth, nodes))


def test_the_largest_shape_that_can_be_asked_for_takes_seconds_and_not_minutes():
    acceptance = tuple(0.5 * 0.9**rank for rank in range(16))
    started = time.process_time()
    shape = best_shape(acceptance, 32, 256)
    assert time.process_time() - started < 5.0
    size, levels = measured(shape)
    assert size == 256 and levels <= 32


@pytest.mark.parametrize("field", ["rank_acceptance", "branching"])
def test_longer_lists_than_sixteen_are_refused(field: str):
    one = 0.1 if field == "rank_acceptance" else 1
    assert len(getattr(DecodingConfig(**{field: (one,) * 16}), field)) == 16
    with pytest.raises(ValidationError, match="at most 16 items"):
        DecodingConfig(**{field: (one,) * 17})


def grown_paths(scores: Scores, config: DecodingConfig) -> set[Path]:
    """The guesses of a tree that a configuration grows on such a draft."""
    paths: dict[int, Path] = {0: ()}

    def expand(nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        found = []
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            paths[node] = (*paths[parent], token) if node else ()
            after = scores(paths[node])
            top = best(after, config.width)
            found.append(TopTokens(top, [after[one] for one in top], 1.0))
        return found

    limits = GrowthLimits(config.depth, config.nodes, config.max_expanded_nodes)
    tree = grow(7, expand, build_rule(config), limits).tree
    held: dict[int, Path] = {0: ()}
    for node in range(1, len(tree)):
        held[node] = (*held[tree.parents[node]], tree.tokens[node])
    return set(held.values()) - {()}


@pytest.mark.parametrize(("depth", "top_k", "total"), [(5, 10, 59), (3, 8, 30), (7, 10, 60), (2, 3, 9)])
@pytest.mark.parametrize("spread", [1.0, 6.0])  # wide trees, and deep ones
def test_topk_verifies_the_guesses_that_eagle2s_own_loop_verifies(
    depth: int, top_k: int, total: int, spread: float
) -> None:
    """In its authors' numbers taken for ours a tree lacked its deepest level."""
    config = DecodingConfig(**eagle2_tree(depth, top_k, total))
    deepest = 0
    for seed in range(12):
        scores = random_scores(seed, 40, spread)
        wanted = verified_paths(scores, depth, top_k, total)
        assert grown_paths(scores, config) == wanted and len(wanted) == total - 1
        deepest = max(deepest, *map(len, wanted))
    assert spread == 1.0 or deepest == depth + 1
