"""What a benchmark says of its runs: pooled ratios, intervals, overhead, differences; and its file of steps."""

import json
import math
import random
from dataclasses import replace

import pytest

from benchmarks import bench_table
from specllava.bench.measured import BenchPrompt, Measured, RawPass, WarmUp
from specllava.bench.pass_prices import PassPrices
from specllava.bench.processes import join_parts
from specllava.bench.report import category_results, report_of
from specllava.bench.results import categories_of, pool, results_of
from specllava.bench.timed_run import TimedRun, TimedStep
from specllava.core.config import DecodingConfig
from specllava.core.trace import RunInfo

PASSES = tuple(
    RawPass(model, width, context, cost * (1 + 0.1 * width + 0.01 * context))
    for model, cost in (("target", 1.0), ("draft", 0.1))
    for width in (1, 2, 8)
    for context in (10, 50)
)


def run_of(tokens, step_tokens, seconds, first=1, width=1, draft_widths=()):
    """A run of equal steps."""
    steps = tuple(
        TimedStep(step_tokens, step_tokens - 1, width, draft_widths, draft=0.0, verify=seconds)
        for _ in range((len(tokens) - first) // step_tokens)
    )
    return TimedRun(tokens, first, 20, 20, 0.5, 1.0, steps, 2.0 + len(steps) * seconds)


def bare(width, context, model="target"):
    """Seconds of a pass, by the formula that PASSES is made of."""
    return (1.0 if model == "target" else 0.1) * (1 + 0.1 * width + 0.01 * context)


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
    assert row["ms_per_token_wall"] == pytest.approx(1e3 * sum(run.wall_seconds for run in runs["chain"]) / 22)


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


def test_speed_is_told_over_the_fastest_lane_of_the_target_alone():
    answer = tuple(range(5))
    runs = {
        "target-only": [run_of(answer, 1, 0.3)], "transformers": [run_of(answer, 1, 0.2)],
        "transformers-assisted": [run_of(answer, 1, 0.1)],
    }  # fmt: skip
    found = {name: lane.speedup.value for name, lane in pool(runs, [0]).items()}
    assert found == pytest.approx({"target-only": 2 / 3, "transformers": 1.0, "transformers-assisted": 2.0})


def test_differences_count_as_ties_only_where_the_target_hesitated():
    ours, theirs, shorter = (1, 2, 3, 4), (1, 2, 9, 4), (1, 2)
    runs = {
        "target-only": [run_of(ours, 1, 0.1)] * 3,
        "chain": [run_of(said, 1, 0.1) for said in (theirs, theirs, shorter)],
    }
    lane = pool(runs, range(3), {(0, 2): 1e-5, (1, 2): 0.5})["chain"]
    assert (lane.mismatches, lane.ties, lane.margins) == (2, 1, (1e-5, 0.5, None))
    assert pool(runs, range(3))["chain"].mismatches == 3


def test_prices_of_passes_are_lines_between_those_that_were_timed():
    floor = PassPrices(PASSES)
    assert floor.seconds("target", 5, 30) == pytest.approx(bare(5, 30))  # between widths and contexts
    assert floor.seconds("draft", 12, 90) == pytest.approx(bare(12, 90, "draft"))  # beyond them
    context, total = 20, 0.0
    for _ in range(2):  # steps of 3 tokens, 4 nodes, two levels; the root lies in front of each
        total += bare(4, context) + bare(1, context, "draft") + bare(2, context + 1, "draft")
        context += 3
    assert floor.of_run(run_of(tuple(range(7)), 3, 9.0, 1, 4, (1, 2))) == pytest.approx(total)


def test_overhead_is_what_lies_above_the_bare_passes_of_the_runs_that_have_them():
    """Two runs whose steps take 1.25 times their passes; the second round, which has no floor, is slow."""
    tree = [run_of(tuple(range(7)), 3, seconds, 1, 4, (1, 2)) for seconds in (0.5, 1.5, 8.0, 8.0)]
    tree = [replace(run, bare_seconds=run.decode_seconds / 1.25) for run in tree[:2]] + tree[2:]
    found = pool({"target-only": [run_of(tuple(range(7)), 1, 9.0)] * 4, "tree": tree}, [0, 1])
    assert found["tree"].overhead == pytest.approx(0.25) and found["tree"].floor.passes == 4
    assert found["tree"].as_json()["ms_floor"] == pytest.approx(1e3 * (2 * 0.5 + 2 * 1.5) / 1.25 / 4)
    assert found["target-only"].as_json()["overhead"] is found["target-only"].as_json()["ms_floor"] is None


def test_a_lane_that_says_all_at_once_has_no_steps_to_speak_of():
    runs = {"target-only": [run_of((1, 2, 3), 1, 0.1)], "transformers-assisted": [run_of((1, 2, 3), 1, 0.1, first=3)]}
    row = pool(runs, [0])["transformers-assisted"].as_json()
    assert row["tau"] is row["speedup"] is row["interval"] is row["overhead"] is None
    assert row["speedup_end_to_end"] > 0 and row["tokens"] == 3
    assert all(value is None or not isinstance(value, float) or math.isfinite(value) for value in row.values())


def measured(rounds=2):
    """A benchmark of two dialogues, the second of two turns."""
    prompts = (BenchPrompt(0, "count", 20), BenchPrompt(1, "story", 20), BenchPrompt(1, "story", 30))
    answers = [(1, 2, 3), (4, 5, 6, 7), (8, 9)]
    runs = {
        name: tuple(run_of(answer, 1, pace, 1, 1) for _ in range(rounds) for answer in answers)
        for name, pace in (("target-only", 0.2), ("chain", 0.1))
    }
    info = RunInfo("pair", "target", "draft", "cpu", "float32", 2, {"torch": "2"})
    return Measured(
        "test", info, DecodingConfig(), {"cpu": "any"}, 3, rounds, WarmUp(2, 0.01, 0.05, True), prompts, runs,
        ((0, 1, 0.5),), {"oak": "it fell"}, PASSES,
    )  # fmt: skip


def test_categories_are_kept_apart():
    found = measured()
    assert categories_of(found) == ("count", "story")
    assert results_of(found)["chain"].totals.tokens == 18
    assert {name: results_of(found, name)["chain"].totals.tokens for name in categories_of(found)} == {
        "count": 6, "story": 12
    }  # fmt: skip


def test_the_file_of_steps_gives_the_same_results(tmp_path):
    found, file = measured(), tmp_path / "raw.json"
    file.write_bytes(found.to_json())
    again = Measured.read(file)
    assert again == found and again.to_json() == found.to_json()
    told = {name: lane.as_json() for name, lane in results_of(again).items()}
    assert told == {name: lane.as_json() for name, lane in results_of(found).items()}


def test_another_file_is_refused_in_one_line(tmp_path):
    file = tmp_path / "raw.json"
    good = measured().to_json()
    short = replace(measured(), runs={"target-only": measured().runs["target-only"][:-1]}).to_json()
    for text in (b"", b"{", b"[]", b'{"lanes": {}}', good.replace(b"steps 1", b"steps 2"), short, good[:-20]):
        file.write_bytes(text)
        with pytest.raises(ValueError, match=r"raw\.json") as told:
            Measured.read(file)
        assert "\n" not in str(told.value) and len(str(told.value)) < 500
    with pytest.raises(ValueError, match="no file at"):
        Measured.read(tmp_path / "absent.json")


def test_tables_and_picture_are_made_anew_from_the_file_of_steps(tmp_path, capsys):
    raw, out = tmp_path / "raw.json", tmp_path / "report.json"
    raw.write_bytes(measured().to_json())
    bench_table.main(raw, json=out)
    printed = capsys.readouterr().out
    report = report_of(measured(), results_of(measured()), category_results(measured()))
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))
    for told in ("| target-only | 1.00 |", "| chain |", "| speed-up | count | story |", "oak failed: it fell"):
        assert told in printed, told
    points = bench_table.figure(measured()).data[0]
    assert list(points.y) == ["target-only", "chain"] and list(points.x) == pytest.approx([1.0, 2.0])
    assert len(points.error_x.array) == len(points.error_x.arrayminus) == 2


def test_parts_of_several_processes_joined_are_the_benchmark_of_one():
    """Eight dialogues of one or two prompts, dealt out to three processes: only the order of dialogues differs."""
    rng = random.Random(5)
    turns = [rng.choice((1, 2)) for _ in range(8)]
    asked = [BenchPrompt(number, rng.choice("ab"), 20) for number, count in enumerate(turns) for _ in range(count)]
    answer = tuple(range(13))
    speeds = [[[rng.uniform(0.1, 0.5) for _ in asked] for _ in range(2)] for _ in ("target-only", "chain")]

    def measured_of(dialogues):
        own = [number for number, one in enumerate(asked) if one.dialogue in dialogues]
        runs = {
            name: tuple(run_of(answer, step, lane[turn][number]) for turn in range(2) for number in own)
            for name, step, lane in zip(("target-only", "chain"), (1, 2), speeds, strict=True)
        }
        prompts = tuple(replace(asked[number], dialogue=dialogues.index(asked[number].dialogue)) for number in own)
        return replace(measured(), margins=(), prompts=prompts, runs=runs, rounds=2, raw_passes=PASSES)

    whole = results_of(measured_of(range(8)))
    found = join_parts([measured_of(range(rank, 8, 3)) for rank in range(3)])
    assert found.machine["processes"] == 3 and len({one.dialogue for one in found.prompts}) == 8
    for name, lane in results_of(found).items():
        row, expected = lane.as_json(), whole[name].as_json()
        for key in ("tau", "ms_per_token", "speedup", "overhead", "runs", "tokens", "mismatches"):
            assert row[key] == pytest.approx(expected[key]), key
