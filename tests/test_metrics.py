"""Measures of traces whose numbers were worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from support.visual_traces import hand_made

from benchmarks.calibration import counted
from specllava import metrics
from specllava.trace import DecodeTrace, Draw, Prefill, StepSeconds, StepTrace, TargetView, Verification
from specllava.tree import DraftTree


def step(tree: DraftTree, accepted: tuple[int, ...], following: int, spent: StepSeconds, emit: int = 99) -> StepTrace:
    """A step; the margin at node ``n`` is ``n + 0.5``."""
    nodes = len(tree)
    emitted = (*(tree.tokens[node] for node in accepted), following)[:emit]
    margins = tuple(node + 0.5 for node in range(nodes))
    view = TargetView((0,) * nodes, (0.5,) * nodes, margins, (0.5,) * nodes, (0,) * nodes)
    return StepTrace(tree, Verification(accepted, following), emitted, view, spent)


def run(first: int, steps: tuple[StepTrace, ...], prefill: float, margin: float = 9.0) -> DecodeTrace:
    begun = Prefill(4, first, margin, prefill / 2, prefill / 4, prefill / 4)
    texts = {token: str(token) for token in range(30)}
    made = hand_made(DraftTree.chain([first]), (), 0)
    return replace(made, prefill=begun, steps=steps, texts=texts, finish_reason="length")


# root 10 ─┬─ 11 ── 13 ── 14        root 14 ── 15        root 16
#          └─ 12
BRANCHING = DraftTree(
    (10, 11, 12, 13, 14), (-1, 0, 0, 1, 3), (0.0, -0.1, -2.0, -0.2, -0.3), (0.4, 1.2, None, 2.0, None)
)
CHAIN = DraftTree((14, 15), (-1, 0), (0.0, -0.1), (0.1, None))

SPECULATIVE = run(
    10,
    (
        step(BRANCHING, (1, 3), 14, StepSeconds(0.1, 0.2, 0.1)),  # emits 11, 13, 14
        step(CHAIN, (), 16, StepSeconds(0.1, 0.1, 0.0)),  # emits 16
        step(DraftTree.chain([16]), (), 17, StepSeconds(0.0, 0.2, 0.0)),  # emits 17
    ),
    prefill=2.0,
)
SHORT = run(10, (step(BRANCHING, (1, 3, 4), 15, StepSeconds(0.1, 0.1, 0.0), emit=2),), prefill=1.0)  # emits 11, 13
PLAIN = run(
    10,
    tuple(
        step(DraftTree.chain([root]), (), following, StepSeconds(0.0, 0.3, 0.1))
        for root, following in ((10, 11), (11, 13), (13, 14), (14, 16), (16, 17))
    ),
    prefill=1.5,
)


def test_totals_are_pooled_over_runs():
    one, both = metrics.summarise([SPECULATIVE]), metrics.summarise(iter([SPECULATIVE, SHORT]))
    assert SPECULATIVE.token_ids == (10, 11, 13, 14, 16, 17) and SHORT.token_ids == (10, 11, 13)
    assert (one.runs, one.tokens, one.step_tokens, one.target_passes) == (1, 6, 5, 3)
    assert (one.drafted, one.accepted, one.tau, one.acceptance) == (5, 2, pytest.approx(5 / 3), pytest.approx(2 / 5))
    assert (one.seconds_per_token, one.tokens_per_second) == (pytest.approx(0.8 / 5), pytest.approx(5 / 0.8))
    assert (one.draft_seconds, one.verify_seconds) == (pytest.approx(0.2), pytest.approx(0.5))
    assert (both.runs, both.tokens, both.target_passes) == (2, 9, 4)
    assert both.tau == pytest.approx(7 / 4)  # the mean of the means would be (5/3 + 2) / 2
    assert both.acceptance == pytest.approx(4 / 9)  # what the limit let through counts, not the verdict
    assert (both.prefill_seconds, both.seconds_per_token) == (pytest.approx(3.0), pytest.approx(1.0 / 7))
    plain, nothing = metrics.summarise([PLAIN]), metrics.summarise([])
    assert plain.tau == 1.0 and (nothing.runs, nothing.tokens) == (0, 0)
    missing = (plain.acceptance, nothing.tau, nothing.acceptance, nothing.seconds_per_token)
    unended = metrics.summarise([run(2, (), prefill=1.0)])
    assert all(map(math.isnan, (*missing, unended.tau, metrics.speedup(plain, nothing))))
    assert metrics.speedup(plain, one) == pytest.approx((2.0 / 5) / (0.8 / 5)) and metrics.speedup(plain, plain) == 1.0
    assert metrics.pass_ratio(plain, one) == pytest.approx((0.5 / 3) / 0.3)


@pytest.mark.parametrize(
    ("drafter", "passes", "tokens", "drafted", "reported"),
    [
        ("model", 32, 33, 90, True),  # 1.03 tokens per pass
        ("model", 1000, 1000, 90, True),
        ("model", 31, 31, 90, False),  # too early
        ("model", 100, 105, 90, False),  # 1.05
        ("model", 40, 80, 90, False),
        ("model", 40, 40, 0, False),  # nothing was guessed
        ("none", 40, 40, 0, False),
        ("prompt-lookup", 40, 40, 90, False),
    ],
)
def test_a_draft_that_is_never_right_is_reported_after_32_passes(drafter, passes, tokens, drafted, reported):
    totals = metrics.RunTotals(1, tokens + 1, passes, drafted, tokens - passes, 1.0, 1.0, first_tokens=1)
    line = metrics.unused_draft("the head", drafter, totals)
    words = f"the target hardly accepts what the head guesses: {tokens / passes:.2f} tokens per pass in {passes} "
    assert line.startswith(words if reported else "") and bool(line) is reported
    assert not reported or all(word in line for word in ("this target", "template", "precision", "d2t"))


def test_answers_part_with_the_margin_of_the_node_that_chose():
    """Position 3 of the reference was chosen at node 3, the last accepted one."""
    same = metrics.compare(PLAIN, SPECULATIVE)
    assert (same.identical, same.tokens, same.position, same.margin, same.near_tie) == (True, 6, None, None, False)
    for position, margin in ((1, 0.5), (2, 1.5), (3, 3.5), (4, 0.5), (5, 0.5)):
        other = list(SPECULATIVE.token_ids)
        other[position] = 29
        steps = tuple(step(DraftTree.chain([a]), (), b, StepSeconds()) for a, b in pairwise(other))
        found = metrics.compare(SPECULATIVE, run(10, steps, prefill=1.0))
        assert (found.identical, found.tokens, found.position, found.margin) == (False, 6, position, margin)
        assert not found.near_tie
    for one, other in ((SPECULATIVE, SHORT), (SHORT, SPECULATIVE)):  # of another length
        found = metrics.compare(one, other)
        assert (found.identical, found.tokens, found.position, found.margin) == (False, 3, 3, None)
        assert not found.near_tie
    nearest = metrics.NEAR_TIE_MARGIN
    for margin, near in ((0.25, False), (0.0, True), (nearest, True), (2 * nearest, False)):
        first = metrics.compare(run(10, (), 1.0, margin), run(11, (), 1.0))
        assert (first.tokens, first.position, first.margin, first.near_tie) == (1, 0, margin, near)


@pytest.mark.parametrize(("uniform", "near"), [(0.25 + 4e-8, True), (0.75 - 4e-8, True), (0.5, False)])
def test_answers_that_were_drawn_part_at_a_near_tie_if_the_number_is_at_the_end_of_a_share(uniform: float, near: bool):
    """A vocabulary of 49,152 has so many ends that rounding moved a draw of a poem over one; a bug, the page said."""
    draw = Draw(0, 11, uniform, None, 0.5, None, (7, 11), (0.25, 0.5), (), (0.0, 0.25))
    (one,) = run(10, (step(DraftTree((10,), (-1,), (0.0,), (None,)), (), 11, StepSeconds(0, 0, 0)),), 1.0).steps
    drawn = run(10, (replace(one, draws=(draw,)),), 1.0)
    other = replace(one, verification=Verification((), 7), emitted=(7,))
    verdict = metrics.compare(drawn, replace(drawn, steps=(other,)))
    assert (verdict.position, verdict.near_tie) == (1, near)
    assert verdict.margin == pytest.approx(min(uniform - 0.25, 0.75 - uniform))
    judged = replace(draw, acceptance=0.5, draft_prob=0.5, draft_probs=(0.5, 0.5), starts=())
    assert judged.margin is None


def test_a_token_is_saved_where_another_child_than_the_favourite_was_accepted():
    """12 has the lower probability of the root's two children."""
    other = step(BRANCHING, (2,), 16, StepSeconds())
    assert [(each.node, each.position, each.outcome) for each in metrics.judged_nodes(other)] == [(0, 0, "saved")]
    assert [each.outcome for each in metrics.judged_nodes(SPECULATIVE.steps[0])] == ["favourite", "favourite", "missed"]
    assert [each.position for each in metrics.judged_nodes(SHORT.steps[0])] == [0, 1]
    assert [metrics.saved_tokens(step) for step in (other, *SPECULATIVE.steps)] == [1] + [0] * len(SPECULATIVE.steps)


def test_reliability_holds_the_drafts_promise_against_the_verdict():
    """Above one half: 11 and 13 taken, 14 and 15 not; below it: 12, not taken."""
    promised = 2 * math.exp(-0.1) + math.exp(-0.2) + math.exp(-0.3)
    for low, high in counted(SPECULATIVE, bins=2).sum(1).tolist():  # by depth and by rank
        assert low == pytest.approx([1, 0, math.exp(-2.0)]) and high == pytest.approx([4, 2, promised])


@pytest.mark.parametrize("right", [0, 7, 30])
def test_the_interval_of_a_rate_holds_exactly_the_rates_that_the_score_test_keeps(right):
    low, high = metrics.wilson(right, 30)
    for bound in (low, high):
        if 0 < bound < 1:
            assert (right / 30 - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / 30)
    assert low <= right / 30 <= high
