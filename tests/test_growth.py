"""Trees grow by the rule, and pruning keeps exactly the best of everything that could have grown."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllava.core.config import DecodingConfig
from specllava.core.growth.grow import MAX_PRUNED, GrownTree, GrowthLimits, grow
from specllava.core.growth.rule import GrowthRule, TopTokens, TreeBuilder
from specllava.core.growth.rules import build_rule
from specllava.core.growth.rules.entropy import EntropyRule
from specllava.core.tree import DraftTree

ROOT = 3
VOCABULARY = 8


def limits(depth: int) -> GrowthLimits:
    """So deep, and otherwise as much as a rule wants."""
    return GrowthLimits(depth, nodes=100_000, expanded_nodes=100_000)


class Table:
    """A random language model: a fixed distribution after every path. Also an ``expand`` that keeps books.

    ``sharpness`` 0 makes all tokens equally likely, so that every comparison of scores is a tie.
    """

    def __init__(self, seed: int, sharpness: float) -> None:
        self.seed, self.sharpness = seed, sharpness
        self.paths: dict[int, tuple[int, ...]] = {}  # of the nodes that were asked for
        self.calls: list[list[int]] = []

    def log_probs(self, path: tuple[int, ...]) -> np.ndarray:
        logits = self.sharpness * np.random.default_rng((self.seed, *path)).normal(size=VOCABULARY)
        return logits - np.log(np.exp(logits).sum())

    def guess(self, path: tuple[int, ...]) -> TopTokens:
        values = self.log_probs(path)
        order = np.argsort(-values, kind="stable")
        entropy = float(-(np.exp(values) * values).sum())
        return TopTokens(order.tolist(), values[order].tolist(), entropy)

    def expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        self.calls.append(list(nodes))
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            assert node not in self.paths, "a node is asked for once"
            assert parent == -1 or parent in self.paths, "a parent is asked for before its child"
            self.paths[node] = (*self.paths.get(parent, ()), token)
        return [self.guess(self.paths[node]) for node in nodes]


def described(tree: DraftTree) -> list[tuple[tuple[int, ...], float, float | None]]:
    """Path in tokens, log-probability and entropy of every node, in order."""
    paths = [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(len(tree))]
    return list(zip(paths, tree.log_probs, tree.entropies, strict=True))


def wanted(rule: GrowthRule, guess: TopTokens) -> int:
    """Children by a rule that looks at nothing but the guess."""
    return rule.num_children(TreeBuilder([ROOT]), 0, guess)


def best_of_everything(
    table: Table, rule: GrowthRule, config: DecodingConfig, depth: int
) -> list[tuple[tuple[int, ...], float, float | None]]:
    """Grow with the width rule alone, never stopping early; then sort and cut."""
    path, score, log_prob, entropy = range(4)
    everything: list[list] = [[(ROOT,), 0.0, 0.0, None]]
    frontier = [everything[0]]
    for _ in range(depth):
        level = []
        for node in frontier:
            guess = table.guess(node[path])
            node[entropy] = guess.entropy
            for token, value in list(zip(guess.tokens, guess.log_probs, strict=True))[: wanted(rule, guess)]:
                level.append([(*node[path], token), node[score] + value, value, None])
        everything += level
        allowed = [node for node in level if node[score] >= config.min_log_prob]
        width = config.width if config.rule == "entropy" else 1
        frontier = heapq.nlargest(width, allowed, key=lambda node: node[score])
    places = range(1, len(everything))
    worthy = [place for place in places if everything[place][score] >= config.min_log_prob]
    best = sorted(worthy, key=lambda place: (-everything[place][score], place))[: config.nodes]
    kept = [everything[place] for place in (0, *sorted(best))]
    return [(n[path], round(n[log_prob], 7), None if n[entropy] is None else round(n[entropy], 7)) for n in kept]


tables = st.builds(Table, seed=st.integers(0, 10_000), sharpness=st.sampled_from((0.0, 0.5, 1.5, 3.0)))
rules = st.builds(
    DecodingConfig,
    rule=st.sampled_from(("entropy", "entropy", "chain")),
    nodes=st.integers(1, 30),
    width=st.integers(1, 6),
    max_branches=st.integers(1, 6),
    entropy_threshold=st.floats(0, 2.5),
    min_log_prob=st.sampled_from((-50.0, -8.0, -4.0, -1.5, 0.0)),
)


@given(tables, rules, st.integers(0, 6))
@settings(max_examples=150)
def test_the_kept_nodes_are_the_best_of_everything(table: Table, config: DecodingConfig, depth: int):
    rule = build_rule(config)
    tree = grow(ROOT, table.expand, rule, limits(depth)).tree
    assert described(tree) == best_of_everything(Table(table.seed, table.sharpness), rule, config, depth)


@given(tables, rules, st.integers(0, 6))
@settings(max_examples=100)
def test_a_tree_stays_within_nodes_depth_width_and_floor(table: Table, config: DecodingConfig, depth: int):
    tree = grow(ROOT, table.expand, build_rule(config), limits(depth)).tree
    assert tree.drafted <= config.nodes
    assert max(tree.depths()) <= depth
    assert min(tree.scores()) >= config.min_log_prob - 1e-5
    assert len(table.calls) <= depth
    assert all(len(level) <= config.width for level in table.calls)


@given(tables, rules, st.integers(0, 6))
@settings(max_examples=100)
def test_kept_nodes_keep_the_number_that_expand_knew(table: Table, config: DecodingConfig, depth: int):
    """The draft finds the cache column of an accepted node by this number."""
    grown = grow(ROOT, table.expand, build_rule(config), limits(depth))
    tree, kept = grown.tree, grown.builder_ids
    assert len(kept) == len(tree)
    assert kept == sorted(set(kept))
    for (path, _, entropy), number in zip(described(tree), kept, strict=True):
        assert (entropy is not None) == (number in table.paths)
        assert table.paths.get(number, path) == path


@given(tables, rules, st.integers(1, 6))
@settings(max_examples=100)
def test_pruned_guesses_are_the_likeliest_that_the_tree_lacks(table: Table, config: DecodingConfig, depth: int):
    grown = grow(ROOT, table.expand, build_rule(config), limits(depth))
    tree, scores = grown.tree, grown.tree.scores()
    inside = set(zip(tree.parents, tree.tokens, strict=True))
    assert not inside & {(guess.parent, guess.token) for guess in grown.pruned}
    assert len(grown.pruned) <= MAX_PRUNED
    totals = [scores[guess.parent] + guess.log_prob for guess in grown.pruned]
    assert totals == sorted(totals, reverse=True) or totals == pytest.approx(sorted(totals, reverse=True), abs=1e-5)
    if tree.drafted < config.nodes:  # only the floor prunes then
        assert all(total < config.min_log_prob + 1e-5 for total in totals)


@given(tables, rules, st.integers(0, 6))
@settings(max_examples=50)
def test_siblings_differ_and_come_best_first(table: Table, config: DecodingConfig, depth: int):
    tree = grow(ROOT, table.expand, build_rule(config), limits(depth)).tree
    for family in tree.children():
        assert len({tree.tokens[node] for node in family}) == len(family)
        values = [tree.log_probs[node] for node in family]
        assert values == sorted(values, reverse=True)


@given(tables, st.floats(0, 2.5), st.integers(1, 6))
@settings(max_examples=50)
def test_an_unsure_node_gets_exp_entropy_children_and_a_sure_one_gets_one(table: Table, threshold: float, most: int):
    config = DecodingConfig(
        entropy_threshold=threshold, max_branches=most, nodes=256, width=64, min_log_prob=-50.0, rule="entropy"
    )
    tree = grow(ROOT, table.expand, build_rule(config), limits(2)).tree
    for node, family in enumerate(tree.children()):
        if (entropy := tree.entropies[node]) is not None:
            choices = math.exp(table.guess(tuple(tree.tokens[n] for n in tree.path(node))).entropy)
            number = 1 if entropy <= threshold else min(most, math.ceil(choices))
            assert len(family) == min(number, VOCABULARY)


@pytest.mark.parametrize(
    ("entropy", "children"),
    [(0.0, 1), (0.5, 1), (0.501, 2), (0.69, 2), (0.70, 3), (1.09, 3), (1.10, 4), (1.39, 5), (3.0, 5), (11.0, 5)],
)
def test_children_by_entropy(entropy: float, children: int):
    rule = EntropyRule(width=1, nodes=1, min_log_prob=0.0, entropy_threshold=0.5, max_branches=5)
    assert wanted(rule, TopTokens((), (), entropy)) == children


@given(tables, rules, st.integers(1, 12))
@settings(max_examples=50)
def test_a_chain_is_the_greedy_continuation(table: Table, config: DecodingConfig, depth: int):
    config = DecodingConfig(rule="chain", nodes=config.nodes, min_log_prob=config.min_log_prob)
    tree = grow(ROOT, table.expand, build_rule(config), limits(depth)).tree
    assert tree.parents == tuple(range(-1, tree.drafted))
    for node in range(tree.drafted):
        assert tree.tokens[node + 1] == table.log_probs(tree.tokens[: node + 1]).argmax()
    if config.min_log_prob == -50.0:
        assert tree.drafted == min(depth, config.nodes)


def test_no_depth_means_no_question_to_the_draft():
    table = Table(0, 1.0)
    grown = grow(ROOT, table.expand, build_rule(DecodingConfig()), limits(0))
    assert (grown, table.calls) == (GrownTree(DraftTree.only_root(ROOT), [0], ()), [])


def test_growth_stops_when_deeper_nodes_cannot_matter():
    """A full budget of equally likely guesses: nothing below them can be kept, so the draft is not asked again."""
    flat = Table(0, 0.0)
    config = DecodingConfig(nodes=2, max_branches=4, entropy_threshold=0.0, width=4, min_log_prob=-50.0)
    tree = grow(ROOT, flat.expand, build_rule(config), limits(6)).tree
    assert tree.drafted == 2
    assert len(flat.calls) < 6
