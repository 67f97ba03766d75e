"""Lanes that the lab compares are compared by counted passes: a busy machine must not turn the answer round."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import models
from support.lab_traces import synthetic_sweep

from benchmarks import worth
from specllava.core.config import COMPARED_RULES, RULES, DecodingConfig
from specllava.core.trace import StepSeconds
from specllava.findings.replays import ReplayStep, priced
from specllava.findings.sweep import Point, Sweep
from specllava.lab import Lab
from specllava.pair import Pair
from visual.figures.sweep_charts import COUNTED, ONE_RUN, rules_chart, sweep_chart

CONFIG = DecodingConfig()
SHORT = DecodingConfig(max_new_tokens=12, depth=4, nodes=8)


def swept(field: str = "rule", values: tuple[str | float, ...] = RULES) -> Sweep:
    *_, found = synthetic_sweep(field, values, CONFIG)
    return found


def disturbed(found: Sweep, busy: str) -> Sweep:
    """The sweep, if the machine had done something else whenever one rule ran."""
    slow = StepSeconds(0.01, 0.1, 0.01)
    runs = [
        (value, replace(run, steps=tuple(replace(step, seconds=slow) for step in run.steps)) if value == busy else run)
        for value, run in found.runs
    ]
    return replace(found, runs=tuple(runs))


def value_of(points: tuple[Point, ...]) -> dict[object, float]:
    return {point.value: point.worth for point in points}


@pytest.mark.parametrize("busy", RULES)
def test_d34_other_work_changes_no_comparison(busy: str) -> None:
    """ "topk: 6.0 tokens a pass at 0.3x" was a machine that did something else meanwhile."""
    quiet = swept()
    noisy = disturbed(quiet, busy)
    assert value_of(noisy.points) == value_of(quiet.points)
    assert rules_chart(noisy).answer == rules_chart(quiet).answer
    clocks = [{row[0]: row[3] for row in rules_chart(found).rows} for found in (quiet, noisy)]
    assert clocks[0] != clocks[1], "the clock's stands beside it"
    assert COUNTED in rules_chart(noisy).answer
    assert COUNTED in sweep_chart(swept("depth", (2, 4, 8))).answer


def test_d34_without_costs_the_clock_is_told_as_the_clock() -> None:
    found = replace(swept(), priced=())
    assert all(point.worth == point.speedup and math.isnan(point.counted) for point in found.points)
    assert ONE_RUN in rules_chart(found).answer


def test_d34_the_points_bear_their_names() -> None:
    """Six colours and shapes had to be looked up in a legend."""
    figure = rules_chart(swept()).figures[0]
    assert not figure.layout.showlegend
    assert [point.text[0].split()[0] for point in figure.data] == [*RULES, "target"]
    assert all("text" in point.mode for point in figure.data)


def test_d34_a_sweep_counts_the_passes_of_every_run(tiny: Pair) -> None:
    *_, done = Lab(tiny).rules(models.picture(0), "Describe this.", SHORT)
    runs, costs = dict(done.runs), tiny.measured_costs
    assert [value for value, _ in done.priced] == list(COMPARED_RULES)
    for value, found in done.priced:
        steps = runs[value].steps
        assert (found.passes, found.tokens) == (len(steps), sum(len(step.emitted) for step in steps))
        sent = priced(map(ReplayStep.of, steps), costs)
        assert found.seconds >= sent.seconds - 1e-12, "levels of which nothing was sent are passes too"
        assert found.speedup == pytest.approx(costs.verify_seconds(0) * found.tokens / found.seconds)


def test_d34_the_benchmark_counts_as_the_lab_does(tiny: Pair) -> None:
    *_, done = Lab(tiny).rules(models.picture(0), "Describe this.", SHORT)
    prompt = tiny.prompt(models.picture(0), "Describe this.", SHORT.max_new_tokens)
    for rule in ("entropy", "chain", "topk"):
        counted = priced(worth.count(tiny, [prompt], replace(SHORT, rule=rule)), tiny.measured_costs)
        assert counted == dict(done.priced)[rule]
