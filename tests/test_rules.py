"""The rules' choices against brute force: no other tree of the same kind is better."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import COSTS
from test_growth import ROOT, Table, limits, tables

from specllava.core.config import RULES, DecodingConfig
from specllava.core.growth.cost_model import Calibration, CostModel, Costs
from specllava.core.growth.grow import grow
from specllava.core.growth.rules import build_rule
from specllava.core.growth.rules.cost_aware import CostAwareRule, best_count
from specllava.core.growth.shapes import Shape, best_shape, fixed_shape
from specllava.core.tree import DraftTree
from specllava.runtime.timing import normalise_by_rounds


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


@given(
    st.lists(st.floats(0.0, 1.0), max_size=12).map(lambda values: sorted(values, reverse=True)),
    st.floats(0.05, 5.0),
)
def test_the_cost_aware_choice_is_the_best_of_all_sets(chances: list[float], rate: float):
    def balance(chosen: tuple[float, ...]) -> float:
        return sum(chosen) - rate * COSTS.verify_seconds(len(chosen))

    ours = balance(tuple(chances[: best_count(chances, rate, COSTS)]))
    for count in range(len(chances) + 1):
        for chosen in itertools.combinations(chances, count):
            assert ours >= balance(chosen) - 1e-9


@given(tables, st.integers(0, 8), st.integers(1, 6), st.integers(1, 20))
@settings(max_examples=60)
def test_a_cost_aware_tree_stays_within_its_limits(table: Table, depth: int, width: int, nodes: int):
    rule = CostAwareRule(CostModel(COSTS), width, nodes, max_branches=3)
    tree = grow(ROOT, table.expand, rule, limits(depth)).tree
    assert tree.drafted <= nodes and max(tree.depths()) <= depth
    assert all(len(level) <= width for level in table.calls)


def test_cost_aware_drafts_deeper_when_guesses_are_taken_and_less_when_they_are_not():
    sure = Table(3, 6.0)
    sizes = {}
    for name, taken in (("taken", True), ("refused", False)):
        rule = CostAwareRule(CostModel(COSTS), 4, 64, max_branches=3)
        for _ in range(40):
            tree = grow(ROOT, Table(sure.seed, sure.sharpness).expand, rule, limits(12)).tree
            first_line = [0]
            while taken and (children := tree.children()[first_line[-1]]):
                first_line.append(children[0])
            rule.update(tree, first_line)
        sizes[name] = max(tree.depths()), tree.drafted
    assert sizes["taken"][0] > sizes["refused"][0]


def test_a_level_promises_what_any_child_brings_and_not_only_the_best_guess():
    """Where two guesses are as likely as each other and both are kept, the text goes on below one of them."""
    known = CostModel(COSTS)
    tree = DraftTree((ROOT, 1, 2), (-1, 0, 0), (0.0, math.log(0.5), math.log(0.5)), (0.7, None, None))
    for turn in range(200):
        known.update(tree, (0, 1 + turn % 2), (1,))
    assert known.hit_rate > 0.95
    assert known.calibration.probability(0.5, best=True) == pytest.approx(0.5, abs=0.02)


def test_when_drafting_costs_more_than_it_can_bring_nothing_is_drafted_deeper():
    dear = Costs.fit({1: 1.0, 64: 1.0}, {1: 50.0})
    table = Table(0, 2.0)
    grow(ROOT, table.expand, CostAwareRule(CostModel(dear), 4, 64, max_branches=3), limits(12))
    assert len(table.calls) == 1


def test_the_calibration_moves_from_the_drafts_word_to_what_was_seen():
    known = Calibration()
    assert known.probability(0.72, best=True) == pytest.approx(0.72)
    for _ in range(1000):
        known.add(0.72, best=True, accepted=False)
    assert known.probability(0.72, best=True) < 0.01
    assert known.probability(0.4, best=True) == pytest.approx(0.4)  # another bin
    assert known.probability(0.72, best=False) == pytest.approx(0.72)  # not the best guess


def test_answers_learn_together():
    known = CostModel(COSTS)
    tree = DraftTree((1, 2, 3), (-1, 0, 0), (0.0, math.log(0.45), math.log(0.44)), (0.9, None, None))
    for _ in range(200):
        CostAwareRule(known, 4, 64, max_branches=3).update(tree, [0, 1])  # a rule is made anew for every answer
    assert known.calibration.probability(0.45, best=True) > 0.95
    assert known.calibration.probability(0.44, best=False) < 0.05
    assert known.hit_rate > 0.95 and known.rate == pytest.approx(2 / COSTS.verify_seconds(2), rel=0.1)


def test_what_steps_really_take_corrects_what_passes_were_measured_to_take():
    tree = DraftTree((1, 2, 3), (-1, 0, 1), (0.0, -0.1, -0.1), (0.1, 0.1, None))
    known, before = CostModel(COSTS), CostModel(COSTS)
    for _ in range(300):  # this machine now checks at a third of its speed and drafts as measured
        for each in (known, before):
            each.update(tree, [0, 1], widths=(1, 1))
        known.observe(draft_seconds=2 * COSTS.level_seconds(1), target_seconds=3 * COSTS.verify_seconds(2))
    assert known.prices_per_second == pytest.approx((known.rate, 3 * known.rate))
    assert known.rate == pytest.approx(2 / (2 * COSTS.level_seconds(1) + 3 * COSTS.verify_seconds(2)), rel=0.1)
    assert known.rate < before.rate
    for _ in range(300):  # and is quick again
        known.update(tree, [0, 1], widths=(1, 1))
        known.observe(draft_seconds=2 * COSTS.level_seconds(1), target_seconds=COSTS.verify_seconds(2))
    assert known.prices_per_second[1] == pytest.approx(known.rate, rel=0.15)


def test_dear_drafting_that_only_the_clock_shows_is_given_up():
    tree = DraftTree((1, 2), (-1, 0), (0.0, -0.1), (0.1, None))
    known, table = CostModel(COSTS), Table(0, 2.0)
    for _ in range(20):
        known.update(tree, [0], widths=(1,))
        known.observe(draft_seconds=50 * COSTS.level_seconds(1), target_seconds=COSTS.verify_seconds(1))
    grow(ROOT, table.expand, CostAwareRule(known, 4, 64, max_branches=3), limits(12))
    assert len(table.calls) == 1


@given(st.lists(st.floats(0.001, 1.0), min_size=12, max_size=12))
def test_costs_never_fall_whatever_was_measured(values: list[float]):
    costs = Costs.fit(dict(zip((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), values, strict=True)), {1: 1.0})
    assert len(costs.verify) == 257 and costs.verify_seconds(500) >= costs.verify[-1]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(costs.verify))


@pytest.mark.parametrize(
    "curve",
    [
        lambda n: 2.0 + 0.01 * n,
        lambda n: 5.0 + 0.0 * n,
        lambda n: 3.0 + 2.0 * n**0.5,
        lambda n: 9.0 + 2.0 * (n > 1) + 0.3 * n,
    ],
)
def test_what_one_more_token_costs_is_found_through_noise(curve: Callable[[float], float]):
    rng, ladder = random.Random(0), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    exact = Costs.fit({n: curve(n) for n in ladder}, {1: 1.0, 2: 1.5, 4: 2.5})
    assert exact.verify == pytest.approx([curve(n) for n in range(1, 258)])  # beyond what was measured, too
    assert exact.level_seconds(3) == pytest.approx(2.0) and exact.level_seconds(99) == pytest.approx(50.0)
    noisy = Costs.fit({n: curve(n) * rng.uniform(1.0, 1.1) for n in ladder}, {1: 1.0})
    ours, true = noisy.verify_seconds(23) - noisy.verify_seconds(3), curve(24) - curve(4)
    assert ours == pytest.approx(true, abs=0.06 * curve(24))


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_changes_its_speed_while_it_is_measured_bends_no_curve(seed: int):
    rng, ladder = random.Random(seed), (1, 2, 4, 8, 16, 32)
    taken: dict[int, list[float]] = {n: [] for n in ladder}
    for number in range(5):
        speed = 1.0 if number == 3 else rng.uniform(1.0, 2.0)  # of one round; the pass over 2 tokens is disturbed once
        for n in ladder:
            taken[n].append(speed * (9.0 + 0.3 * n) + 5.0 * (n == 2 and number == 1))
    assert normalise_by_rounds(taken) == pytest.approx({n: 9.0 + 0.3 * n for n in ladder}, rel=0.03)


def test_every_rule_of_the_configuration_grows():
    for name in RULES:
        tree = grow(ROOT, Table(1, 2.0).expand, build_rule(DecodingConfig(rule=name), CostModel(COSTS)), limits(4)).tree
        assert tree.drafted > 0, name


def test_cost_aware_without_costs_says_so():
    with pytest.raises(ValueError, match="needs the measured costs"):
        build_rule(DecodingConfig(rule="cost-aware"))
