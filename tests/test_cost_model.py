"""What the cost model learns, what it must not learn from, and shapes of trees that are worked out in time."""

from __future__ import annotations

import copy
import math
import random
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import models
from support.models import COSTS
from test_rules import expected_accepted

from specllava import decoding
from specllava.core.config import DecodingConfig
from specllava.core.growth.cost_model import Calibration, CostModel, Costs
from specllava.core.growth.shapes import Shape, best_shape
from specllava.core.trace import StepTrace
from specllava.lab import Lab
from specllava.lane import Lane
from specllava.runtime.timing import normalise_by_rounds

COST_AWARE = DecodingConfig(rule="cost-aware", max_new_tokens=12)


@pytest.mark.parametrize("slope", [0.01, 0.5])
def test_costs_keep_rising_behind_the_longest_measured_pass(slope: float):
    """A pass over 65 to 257 tokens, and a level of more than 8 nodes, cost no more than the last measured one."""
    costs = Costs.fit({n: 1.0 + slope * n for n in (1, 2, 8, 64)}, {n: 0.1 + slope * n for n in (1, 2, 4, 8)})
    verify = [costs.verify_seconds(drafted) for drafted in range(300)]
    levels = [costs.level_seconds(width) for width in range(1, 100)]
    for curve in (verify[63:], levels[7:]):
        assert [after - before for before, after in pairwise(curve)] == pytest.approx([slope] * (len(curve) - 1))
    assert costs.verify_seconds(256) == pytest.approx(1.0 + slope * 257)
    assert costs.level_seconds(64) == pytest.approx(0.1 + slope * 64)


@pytest.mark.parametrize("seed", range(8))
def test_no_pass_costs_nothing_however_disturbed_the_points_were(seed: int):
    """On a busy machine the fitted cost of a narrow pass fell below zero, and a draft seemed to be free."""
    rng = random.Random(seed)
    points = {n: 0.001 * n * rng.uniform(0.2, 9.0) for n in (1, 2, 4, 8)}
    costs = Costs.fit(points, points)
    assert min(*(costs.level_seconds(width) for width in range(1, 65)), costs.verify_seconds(0)) > 0


def test_a_step_without_a_level_teaches_nothing():
    pair, prompt = models.pair("mixed"), models.prompt(0)
    request = pair.request(Lane("any", COST_AWARE, prompt))
    request.prefill()
    known = pair.cost_model(sampling=False)
    depths = []
    while request.finished is None:
        depths.append(min(COST_AWARE.depth, request.room - 1))
        before = copy.deepcopy(known)
        request.propose()
        request.verify()
        assert (known == before) == (depths[-1] == 0)
    # An answer that ends with a branch has no such step; this one ends with it by force.
    last = pair.request(Lane("any", DecodingConfig(rule="cost-aware", max_new_tokens=2), prompt))
    last.prefill()
    before = copy.deepcopy(known)
    step = [last.propose(), last.verify()][1]
    assert isinstance(step, StepTrace) and step.tree.drafted == 0 and step.finished == "length"
    assert known == before


@pytest.mark.parametrize("reading", [math.nan, math.inf, -math.inf])
def test_a_clock_that_fails_once_does_not_stop_drafting(reading: float, monkeypatch: pytest.MonkeyPatch):
    pair = replace(models.pair("mixed"), costs=COSTS)
    readings, clock = [reading], decoding.now_read
    monkeypatch.setattr(decoding, "now_read", lambda: readings.pop() if readings else clock())
    lane = Lane("any", COST_AWARE, models.prompt(0))
    assert pair.run(lane).token_ids == models.reference(0)[:12]
    assert not readings and all(math.isfinite(price) for price in pair.cost_model(sampling=False).prices_per_second)
    assert sum(step.tree.drafted for step in pair.run(lane).steps) > 0


@pytest.mark.parametrize("reading", [math.nan, math.inf])
def test_a_round_of_passes_that_the_clock_did_not_measure_is_left_out(reading: float):
    good = {1: [1.0, 1.0], 2: [2.0, 2.0]}
    hurt = {1: [1.0, reading, 1.0], 2: [2.0, 2.0, 2.0]}
    assert normalise_by_rounds(hurt) == normalise_by_rounds(good) == {1: 1.0, 2: 2.0}
    with pytest.raises(ValueError, match="the clock gave no seconds of passes"):
        normalise_by_rounds({1: [reading], 2: [2.0]})


def test_a_request_that_must_not_teach_leaves_the_cost_model_as_it_is():
    pair, lane = models.pair("mixed"), Lane("any", COST_AWARE, models.prompt(0))
    known = pair.cost_model(sampling=False)
    before = copy.deepcopy(known)
    request = pair.request(lane, learn=False)
    request.prefill()
    while request.finished is None:
        request.propose()
        request.verify()
    assert known == before
    pair.run(lane)
    assert known != before


def test_an_experiment_that_shows_the_draft_something_else_teaches_nothing():
    pair = models.pair("mixed")
    known = pair.cost_model(sampling=False)
    before = copy.deepcopy(known)
    *_, found = Lab(pair).image_ablation(models.picture(0), "What?", models.picture(1), COST_AWARE)
    assert len(found.results) == 3 and all(side.trace.steps for side in found.results)
    assert known == before == CostModel(COSTS)


def test_old_verdicts_fade():
    """A calibration that had seen ten thousand steps could hardly learn that the texts have changed."""
    known = Calibration()
    for taken, steps in ((True, 10_000), (False, 3_000)):
        for _ in range(steps):
            known.fade()
            known.add(0.6, best=True, accepted=taken)
    assert known.probability(0.6, best=True) < 0.07  # 3,000 of 13,000 would give 0.77
    assert sum(known.judged) < 1_001
    for _ in range(20_000):
        known.fade()
    assert known.probability(0.6, best=True) == pytest.approx(0.6, abs=1e-6)


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
