"""Trees, how every rule grows them, and the options of both, against the most naive way to say it."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from support.cases import complaint
from support.models import trees

from specllava.config import RULE_CHOICES, DecodingConfig, eagle2_tree, one_line, options_read, short
from specllava.spec_decode.growth import GrownTree, TopTokens, TreeBuilder, grow
from specllava.spec_decode.rules import RULES, EntropyRule, Shape, best_shape, build_rule, fixed_shape
from specllava.tree import MAX_PRUNED, ROOT_PARENT, DraftTree

Path = tuple[int, ...]  # tokens from the root on
ROOT = 3
VOCABULARY = 8


def climb(tree: DraftTree, node: int) -> list[int]:
    """Nodes from ``node`` up to the root."""
    line = [node]
    while line[-1] != 0:
        line.append(tree.parents[line[-1]])
    return line


@given(trees())
def test_paths_depths_and_scores_are_those_of_a_climb_and_every_prefix_is_a_tree(tree: DraftTree):
    lines = [climb(tree, node) for node in range(len(tree))]
    assert [tree.path(node) for node in range(len(tree))] == [tuple(line[::-1]) for line in lines]
    assert tree.depths() == tuple(len(line) - 1 for line in lines)
    assert tree.scores() == pytest.approx([math.fsum(tree.log_probs[n] for n in line) for line in lines], abs=1e-9)
    for count in range(1, len(tree) + 1):
        part = DraftTree(tree.tokens[:count], tree.parents[:count], tree.log_probs[:count], tree.entropies[:count])
        assert (part.drafted, part.depths()) == (count - 1, tree.depths()[:count])


@given(trees())
def test_children_are_the_inverse_of_parents_and_ranks_count_the_likelier_siblings(tree: DraftTree):
    families = [[c for c in range(1, len(tree)) if tree.parents[c] == n] for n in range(len(tree))]
    assert tree.children() == tuple(map(tuple, families))
    for family in families:
        for node in family:
            likelier = [n for n in family if (-tree.log_probs[n], n) < (-tree.log_probs[node], node)]
            assert tree.sibling_ranks()[node] == len(likelier)


@given(trees())
def test_a_node_sees_exactly_its_own_path(tree: DraftTree):
    mask = tree.ancestor_mask()
    for seer in range(len(tree)):
        for seen in range(len(tree)):
            assert mask[seer, seen] == (seen in climb(tree, seer))


def test_malformed_lists_are_refused():
    cases: tuple[tuple[tuple[Any, ...], str], ...] = (
        (((), (), (), ()), "at least the root"),
        (((1, 2), (ROOT_PARENT,), (0.0, -1.0), (None, None)), "lengths (2, 1, 2, 2)"),
        (((1, 2), (ROOT_PARENT, 0), (0.0,), (None, None)), "lengths (2, 2, 1, 2)"),
        (((1, 2), (ROOT_PARENT, 0), (0.0, -1.0), (None,)), "lengths (2, 2, 2, 1)"),
        (((1,), (0,), (0.0,), (None,)), "its parent must be -1, not 0"),
        (((1, 2), (ROOT_PARENT, ROOT_PARENT), (0.0, -1.0), (None, None)), "node 1 has parent -1"),
        (((1, 2), (ROOT_PARENT, 1), (0.0, -1.0), (None, None)), "node 1 has parent 1"),
        (((1, 2, 3), (ROOT_PARENT, 2, 0), (0.0, -1.0, -1.0), (None, None, None)), "node 1 has parent 2"),
    )
    for lists, words in cases:
        assert words in complaint(lambda lists=lists: DraftTree(*lists))


class Draft:
    """A draft that guesses by the path alone, from the root on; its ``expand`` keeps books."""

    def __init__(self, guess: Callable[[Path], TopTokens]) -> None:
        self.guess = guess
        self.paths: dict[int, Path] = {}  # of the nodes that were asked for
        self.calls: list[list[int]] = []

    def expand(self, builder: TreeBuilder, nodes: Sequence[int]) -> list[TopTokens]:
        self.calls.append(list(nodes))
        for node in nodes:
            parent = builder.parents[node]
            assert node not in self.paths, "a node is asked for once"
            assert parent == -1 or parent in self.paths, "a parent is asked for before its child"
            self.paths[node] = (*self.paths.get(parent, ()), builder.tokens[node])
        return [self.guess(self.paths[node]) for node in nodes]


def random_draft(seed: int, sharpness: float) -> Draft:
    """A fixed distribution after every path; ``sharpness`` 0 makes all tokens equally likely, so that scores tie."""

    def guess(path: Path) -> TopTokens:
        logits = sharpness * np.random.default_rng((seed, *path)).normal(size=VOCABULARY)
        values = logits - np.log(np.exp(logits).sum())
        order = np.argsort(-values, kind="stable")
        return TopTokens(order.tolist(), values[order].tolist(), float(-(np.exp(values) * values).sum()))

    return Draft(guess)


def grown(draft: Draft, config: DecodingConfig) -> GrownTree:
    return grow(ROOT, draft.expand, build_rule(config), config.depth, config)


def described(tree: DraftTree) -> list[tuple[Path, float, float | None]]:
    """Path in tokens, log-probability and entropy of every node, in order."""
    paths = [tuple(tree.tokens[step] for step in tree.path(node)) for node in range(len(tree))]
    return list(zip(paths, tree.log_probs, tree.entropies, strict=True))


def best_of_everything(draft: Draft, config: DecodingConfig) -> list[tuple[Path, float, float | None]]:
    """Give each node of the beam its children, never stopping early; then sort and cut."""
    path, score, log_prob, entropy = range(4)
    floor = -math.inf if config.rule == "topk" else config.min_log_prob
    width = 1 if config.rule == "chain" else config.width
    everything: list[list] = [[(ROOT,), 0.0, 0.0, None]]
    frontier = [everything[0]]
    for _ in range(config.depth):
        level = []
        for node in frontier:
            guess = draft.guess(node[path])
            node[entropy] = guess.entropy
            unsure = min(config.max_branches, math.ceil(math.exp(guess.entropy)))
            by_entropy = unsure if guess.entropy > config.entropy_threshold else 1
            count = {"entropy": by_entropy, "chain": 1, "topk": config.width}[config.rule]
            for token, value in list(zip(guess.tokens, guess.log_probs, strict=True))[:count]:
                level.append([(*node[path], token), node[score] + value, value, None])
        everything += level
        allowed = [node for node in level if node[score] >= floor]
        frontier = heapq.nlargest(width, allowed, key=lambda node: node[score])
    places = range(1, len(everything))
    worthy = [place for place in places if everything[place][score] >= floor]
    best = sorted(worthy, key=lambda place: (-everything[place][score], place))[: config.nodes]
    kept = [everything[place] for place in (0, *sorted(best))]
    return [(n[path], round(n[log_prob], 7), None if n[entropy] is None else round(n[entropy], 7)) for n in kept]


drafts = st.builds(random_draft, seed=st.integers(0, 10_000), sharpness=st.sampled_from((0.0, 0.5, 1.5, 3.0)))
configs = st.builds(
    DecodingConfig,
    rule=st.sampled_from(("entropy", "entropy", "chain", "topk")),
    depth=st.integers(1, 6),
    nodes=st.integers(1, 30) | st.just(256),
    width=st.integers(1, 6) | st.just(64),
    max_branches=st.integers(1, 6),
    entropy_threshold=st.floats(0, 2.5),
    min_log_prob=st.sampled_from((-50.0, -8.0, -4.0, -1.5, 0.0)),
)


@given(drafts, configs)
@settings(max_examples=150, deadline=None)
def test_the_kept_nodes_are_the_best_of_everything(draft: Draft, config: DecodingConfig):
    """They keep the numbers by which ``expand`` knew them: so the draft finds the columns of accepted ones."""
    found = grown(draft, config)
    assert described(found.tree) == best_of_everything(draft, config)
    assert len(draft.calls) <= config.depth and all(len(level) <= config.width for level in draft.calls)
    assert found.builder_ids == sorted(set(found.builder_ids))
    for (path, _, entropy), number in zip(described(found.tree), found.builder_ids, strict=True):
        assert (entropy is not None) == (number in draft.paths)
        assert draft.paths.get(number, path) == path


@given(drafts, configs)
@settings(max_examples=100)
def test_pruned_guesses_are_the_likeliest_that_the_tree_lacks(draft: Draft, config: DecodingConfig):
    tree, pruned = (found := grown(draft, config)).tree, found.pruned
    scores = tree.scores()
    inside = set(zip(tree.parents, tree.tokens, strict=True))
    assert not inside & {(guess.parent, guess.token) for guess in pruned}
    assert len(pruned) <= MAX_PRUNED
    totals = [scores[guess.parent] + guess.log_prob for guess in pruned]
    assert totals == sorted(totals, reverse=True) or totals == pytest.approx(sorted(totals, reverse=True), abs=1e-5)
    if tree.drafted < config.nodes:  # only the floor prunes then
        assert all(total < config.min_log_prob + 1e-5 for total in totals)


@pytest.mark.parametrize(
    ("entropy", "children"),
    [(0.0, 1), (0.5, 1), (0.501, 2), (0.69, 2), (0.70, 3), (1.09, 3), (1.10, 4), (1.39, 5), (3.0, 5), (11.0, 5)],
)
def test_children_by_entropy(entropy: float, children: int):
    rule = EntropyRule(width=1, nodes=1, min_log_prob=0.0, entropy_threshold=0.5, max_branches=5)
    assert rule.num_children(TreeBuilder([ROOT]), 0, TopTokens((), (), entropy)) == children


def test_growth_stops_when_deeper_nodes_cannot_matter():
    """A full budget of equally likely guesses: nothing below them can be kept, so the draft is not asked again."""
    flat = random_draft(0, 0.0)
    config = DecodingConfig(nodes=2, max_branches=4, entropy_threshold=0.0, width=4, min_log_prob=-50.0, depth=6)
    assert grown(flat, config).tree.drafted == 2
    assert len(flat.calls) < 6


@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_guessed_after_the_end_of_an_answer(rule: Any):
    """No pass is spent on it. Trees are worth no less: the draft's chances of guesses that can be accepted, summed."""
    ends, config = frozenset({1, 4}), DecodingConfig(rule=rule, nodes=12, depth=5, min_log_prob=-50.0)
    gained = 0.0

    def worth(tree: DraftTree) -> float:
        going_on = (n for n in range(1, len(tree)) if not {tree.tokens[one] for one in tree.path(n)[1:-1]} & ends)
        return math.fsum(math.exp(math.fsum(tree.log_probs[one] for one in tree.path(node))) for node in going_on)

    for seed in range(40):
        draft = random_draft(seed, 1.5)
        tree = grow(ROOT, draft.expand, build_rule(config), config.depth, config, ends).tree
        assert not any({*path[1:-1]} & ends for path, *_ in described(tree))
        assert not any({*path[1:]} & ends for path in draft.paths.values())
        gained += worth(tree) - worth(grown(random_draft(seed, 1.5), config).tree)
    assert gained > 0.1 if rule in ("entropy", "topk") else abs(gained) < 1e-9  # others have the shape of every tree


def test_no_depth_means_no_question_to_the_draft():
    draft = random_draft(0, 1.0)
    found = grow(ROOT, draft.expand, build_rule(DecodingConfig()), 0, DecodingConfig())
    assert (found, draft.calls) == (GrownTree(DraftTree((ROOT,), (ROOT_PARENT,), (0.0,), (None,)), [0], ()), [])
    assert found.tree == DraftTree.chain([ROOT]) and found.tree.drafted == 0


def expected_accepted(shape: Shape, acceptance: tuple[float, ...]) -> float:
    """Accepted tokens per step that a shape promises."""
    return sum(
        chance * (1 + expected_accepted(child, acceptance)) for chance, child in zip(acceptance, shape, strict=False)
    )


def shapes(nodes: int, depth: int, ranks: int, rank: int = 0) -> list[Shape]:
    """Every shape of exactly so many nodes whose first child has a rank."""
    if nodes == 0 or depth == 0 or rank == ranks:
        return [()] if nodes == 0 else []
    return [
        (first, *rest)
        for own in range(nodes)
        for first in shapes(own, depth - 1, ranks)
        for rest in shapes(nodes - 1 - own, depth, ranks, rank + 1)
    ]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_sequoias_shape_promises_more_than_any_other(acceptance: list[float], depth: int, nodes: int):
    shares = tuple(sorted(acceptance, reverse=True))
    found = best_shape(shares, depth, nodes)
    possible = [shape for size in range(nodes + 1) for shape in shapes(size, depth, len(shares))]
    assert found in possible
    promise = max(expected_accepted(shape, shares) for shape in possible)
    assert expected_accepted(found, shares) == pytest.approx(promise)


@given(drafts, st.sampled_from(("fixed", "sequoia")), st.integers(1, 5), st.integers(1, 4), st.integers(1, 12))
@settings(max_examples=80)
def test_a_shaped_tree_has_its_shape_and_the_best_guesses(draft: Draft, rule: str, depth: int, widest: int, nodes: int):
    config = DecodingConfig(rule=rule, branching=(widest, 2, 1), depth=depth, nodes=nodes)
    tree, left = grown(draft, config).tree, nodes

    def shape_of(node: int) -> Shape:
        return tuple(shape_of(child) for child in tree.children()[node])

    settled = {"fixed": (fixed_shape, config.branching), "sequoia": (best_shape, config.rank_acceptance)}
    build, numbers = settled[rule]
    assert shape_of(0) == build(numbers, depth, nodes)
    for node, (family, level) in enumerate(zip(tree.children(), tree.depths(), strict=True)):
        best = draft.guess(tuple(tree.tokens[n] for n in tree.path(node))).tokens
        assert [tree.tokens[child] for child in family] == list(best)[: len(family)]
        if rule == "fixed":  # level by level until the nodes are used up
            assert len(family) == min(left, (widest, 2, 1)[level] if level < min(depth, 3) else 0)
            left -= len(family)


def eagle2_paths(draft: Draft, depth: int, top_k: int, total: int) -> set[Path]:
    """The guesses that EAGLE-2 verifies, by its drafting loop read plainly (SafeAILab/EAGLE, ``topK_genrate``).

    Args:
        depth: passes after the root's.
        top_k: nodes of a level, and children of each.
        total: tokens to verify, the root among them.
    """
    beam: dict[Path, float] = {(ROOT,): 0.0}
    known: dict[Path, float] = {}
    for _ in range(depth + 1):
        grown: dict[Path, float] = {}
        for path, score in beam.items():
            guess = draft.guess(path)
            children = list(zip(guess.tokens, guess.log_probs, strict=True))[:top_k]
            grown |= {(*path, token): score + value for token, value in children}
        known |= grown
        beam = {path: grown[path] for path in heapq.nlargest(top_k, grown, key=grown.__getitem__)}
    return set(heapq.nlargest(total - 1, known, key=known.__getitem__))


@pytest.mark.parametrize(("depth", "top_k", "total"), [(5, 8, 59), (3, 8, 30), (7, 6, 60), (2, 3, 9)])
@pytest.mark.parametrize("sharpness", [0.5, 3.0])  # wide trees, and deep ones
def test_topk_verifies_the_guesses_that_eagle2s_own_loop_verifies(depth: int, top_k: int, total: int, sharpness: float):
    """In its authors' numbers taken for ours a tree lacked its deepest level."""
    config, deepest = DecodingConfig(**eagle2_tree(depth, top_k, total)), 0
    for seed in range(12):
        draft = random_draft(seed, sharpness)
        wanted = eagle2_paths(draft, depth, top_k, total)
        assert {path for path, *_ in described(grown(draft, config).tree)} == wanted | {(ROOT,)}
        deepest = max(deepest, *map(len, wanted))
    assert sharpness < 1 or deepest == depth + 2


def test_whether_a_rule_can_draw_is_what_it_is_built_of():
    assert [*RULES] == [*RULE_CHOICES]
    for name in RULES:
        assert build_rule(DecodingConfig(rule=name)).drawable == RULE_CHOICES[name].drawable


OTHER: dict[str, Any] = {
    "entropy_threshold": 1.9, "max_branches": 5, "width": 2, "min_log_prob": -3.0, "branching": (2, 3),
    "rank_acceptance": (0.5, 0.4), "ngram": 6, "depth": 3, "nodes": 4,
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_grows_within_its_limits_and_by_the_options_that_it_reads(rule: str):
    def trees_of(**changed: Any) -> list[DraftTree]:
        config = DecodingConfig(**{"rule": rule, "depth": 6, "nodes": 20, "min_log_prob": -6.0} | changed)
        found = [grown(random_draft(seed, 1.5), config).tree for seed in range(6)]
        assert all(0 < tree.drafted <= config.nodes and max(tree.depths()) <= config.depth for tree in found)
        return found

    changing = {name for name, value in OTHER.items() if trees_of(**{name: value}) != trees_of()}
    assert changing == OTHER.keys() & options_read("model", rule, 0.0)


BOUNDS = {
    "depth": (1, 32), "nodes": (1, 256), "max_branches": (1, 16), "width": (1, 64), "entropy_threshold": (0.0, 12.0),
    "min_log_prob": (-50.0, 0.0),
}  # fmt: skip


def refusal(options: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        DecodingConfig(**options)
    return one_line(caught.value)


def test_bounds_are_allowed_and_what_lies_outside_is_refused_with_field_value_and_bound():
    for field, (low, high) in BOUNDS.items():
        step = 1 if isinstance(low, int) else 0.25
        for bound, value in ((low, low - step), (high, high + step)):
            assert getattr(DecodingConfig(**{field: bound}), field) == bound
            line = refusal({field: value})
            assert line.startswith(f"{field} = {value!r}: ") and line.endswith(f" {bound:g}") and "\n" not in line
        assert f"{field} = nan: " in refusal({field: math.nan})
    long = DecodingConfig(max_new_tokens=1_000_000, branching=(1,) * 16, rank_acceptance=(0.1,) * 16)
    assert (long.max_new_tokens, len(long.rank_acceptance)) == (1_000_000, 16)


def test_what_is_no_option_is_refused_in_a_short_line():
    """It names three complaints and counts the rest."""
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"depth": 2.5}, "depth = 2.5: "),
        ({"max_new_tokens": 0}, "max_new_tokens = 0: input should be greater than or equal to 1"),
        ({"rule": "forest"}, "rule = 'forest': input should be 'entropy', "),
        ({"drafter": "oracle"}, "drafter = 'oracle': input should be 'model', "),
        ({"warmth": 1.0}, "warmth = 1.0: "),
        ({"branching": (1,) * 17}, "branching = (1, 1, 1, 1, 1, 1, ...): tuple should have at most 16 items"),
        ({"children": "drawn", "rule": "fixed"}, "drawn children need a temperature above 0"),
        ({"children": "drawn", "temperature": 1.0, "rule": "topk"}, "the topk rule drops guesses for what they are"),
        ({"rule": "x\n" * 10_000}, "rule = "),
        ({"depth": 0, "nodes": 0, "width": 0, "max_branches": 0, "max_new_tokens": 0}, "; and 2 more"),
    )
    for options, words in cases:
        line = refusal(options)
        assert words in line and "\n" not in line and len(line) < 300, line


def test_a_value_for_a_message_is_short_whatever_it_is():
    for value in ("x" * 10**6, 10**5000, [10**5000] * 10**6, {"a": "b" * 10**6}, np.zeros((9, 9))):
        assert len(short(value)) <= 60 and "\n" not in short(value)


@pytest.mark.parametrize("drafter", ["prompt-lookup", "none"])
def test_answers_are_the_targets_own_where_no_draft_is_drawn_from(drafter: str):
    drawn = DecodingConfig(children="drawn", temperature=1.0, rule="fixed")
    assert not drawn.keeps_tokens
    assert dataclasses.replace(drawn, drafter=drafter).keeps_tokens


def test_every_option_has_a_help_text():
    schema = TypeAdapter(DecodingConfig).json_schema()["properties"]
    assert set(schema) == {field.name for field in dataclasses.fields(DecodingConfig)}
    assert all(entry.get("description", "").endswith(".") for entry in schema.values())
