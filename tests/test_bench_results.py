"""What a benchmark says of its runs: pooled ratios, intervals, differences; and its file of steps."""

import json
import math
import random

import pytest

from specllava.bench import Measured, Plan, TimedRun, category_results, pool, report_of, results_of, tables_of
from specllava.config import DecodingConfig
from specllava.metrics import RunTotals
from specllava.trace import RunInfo


def run_of(tokens, step_tokens, seconds, first=1):
    """A run of equal steps."""
    steps = (len(tokens) - first) // step_tokens
    return TimedRun(
        tokens,
        RunTotals(
            1, len(tokens), steps, 0, steps * (step_tokens - 1), steps * seconds, 1.5,
            verify_seconds=steps * seconds, vision_seconds=0.5, wall_seconds=2.0 + steps * seconds, first_tokens=first,
        ),
    )  # fmt: skip


def test_ratios_are_of_totals_and_their_intervals_are_the_bootstraps():
    """Two dialogues: an interval ends at the ratios of each alone, which is as far as resampling reaches."""
    slow, fast = (0.2, 0.4), (0.1, 0.1)
    answer = tuple(range(11))
    runs = {
        "target-only": [run_of(answer, 1, each) for each in slow],
        "chain": [run_of(answer, 2, 2 * each) for each in fast],
    }
    found = pool(runs, [0, 1])
    assert found["chain"].speedup.value == pytest.approx(sum(slow) / sum(fast))
    assert (found["chain"].speedup.low, found["chain"].speedup.high) == pytest.approx((2.0, 4.0))
    assert found["target-only"].speedup.value == 1.0
    assert found["chain"].totals.tau == 2.0 and found["chain"].per_token.value == pytest.approx(0.1)
    row = found["chain"].as_json()
    assert row["interval"] == pytest.approx([2.0, 4.0]) and row["efficiency"] == pytest.approx(row["speedup"] / 2)
    assert row["ms_per_token_wall"] == pytest.approx(1e3 * sum(run.totals.wall_seconds for run in runs["chain"]) / 22)


@pytest.mark.night
def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """Of 200 benchmarks of 40 noisy prompts whose true speed-up is 2, the 95 % interval holds 2 in most."""
    rng = random.Random(0)
    answer = tuple(range(9))
    hits = 0
    for _ in range(200):
        base = [rng.uniform(0.5, 1.5) for _ in range(40)]
        runs = {
            "target-only": [run_of(answer, 1, each) for each in base],
            "chain": [run_of(answer, 1, each / 2 * rng.uniform(0.8, 1.2)) for each in base],
        }
        speedup = pool(runs, range(40))["chain"].speedup
        hits += speedup.low <= 2.0 <= speedup.high
    assert 178 <= hits <= 198


def test_turns_of_a_dialogue_and_rounds_are_drawn_together():
    """One dialogue gives no interval, however many runs it has."""
    runs = {"target-only": [run_of((1, 2, 3), 1, 0.1)] * 6, "chain": [run_of((1, 2, 3), 1, 0.2)] * 6}
    row = pool(runs, [0, 0, 0])["chain"].as_json()
    assert row["interval"] is None and row["speedup"] == pytest.approx(0.5)


def test_differences_count_as_ties_only_where_the_target_hesitated():
    ours, theirs, shorter = (1, 2, 3, 4), (1, 2, 9, 4), (1, 2)
    runs = {
        "target-only": [run_of(ours, 1, 0.1)] * 3,
        "chain": [run_of(said, 1, 0.1) for said in (theirs, theirs, shorter)],
    }
    lane = pool(runs, range(3), {(0, 2): 1e-5, (1, 2): 0.5})["chain"]
    assert (lane.mismatches, lane.ties, lane.margins) == (2, 1, (1e-5, 0.5, None))
    assert pool(runs, range(3))["chain"].mismatches == 3


def test_a_lane_that_says_all_at_once_has_no_steps_to_speak_of():
    runs = {"target-only": [run_of((1, 2, 3), 1, 0.1)], "transformers-assisted": [run_of((1, 2, 3), 1, 0.1, first=3)]}
    row = pool(runs, [0])["transformers-assisted"].as_json()
    assert row["tau"] is row["speedup"] is row["interval"] is None
    assert row["speedup_end_to_end"] > 0 and row["tokens"] == 3
    assert all(value is None or not isinstance(value, float) or math.isfinite(value) for value in row.values())


def measured(rounds=2):
    """A benchmark of two dialogues, the second of two turns."""
    prompts = (0, "count"), (1, "story"), (1, "story")
    answers = [(1, 2, 3), (4, 5, 6, 7), (8, 9)]
    runs = {
        name: tuple(run_of(answer, 1, pace) for _ in range(rounds) for answer in answers)
        for name, pace in (("target-only", 0.2), ("chain", 0.1))
    }
    info = RunInfo("pair", "target", "draft", "cpu", "float32", 2, {"torch": "2"})
    plan = Plan("test", rounds, seed=3)
    return Measured(plan, info, DecodingConfig(), {"cpu": "any"}, rounds, prompts, runs, {(0, 1): 0.5})


def test_categories_are_kept_apart():
    found = measured()
    assert results_of(found)["chain"].totals.tokens == 18
    assert {name: results_of(found, name)["chain"].totals.tokens for name in ("count", "story")} == {
        "count": 6, "story": 12
    }  # fmt: skip


def test_a_report_and_its_tables_hold_the_results():
    found = measured()
    results, categories = results_of(found), category_results(found)
    report = json.loads(json.dumps(report_of(found, results, categories)))
    assert report["lanes"]["chain"]["speedup"] == pytest.approx(2.0) and report["reference"] == "target-only"
    assert report["categories"].keys() == {"count", "story"} and report["seed"] == 3
    speed, times, kinds = tables_of("title", results, categories)
    cells = [list(column.cells) for column in speed.columns]
    assert cells[0] == ["target-only", "chain"] and cells[3] == ["1.00", "2.00"]
    assert [column.header for column in kinds.columns] == ["speed-up", "count", "story"]
    assert len(times.columns) == 6
