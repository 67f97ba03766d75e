"""The lanes of a benchmark: the same tokens whoever decodes, counted the same way; ratios, intervals and its file."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import models
from support.cases import complaint

from benchmarks import gpu
from benchmarks.transformers_lanes import COMPILED, TRANSFORMERS, TRANSFORMERS_LANES, runners_with_transformers
from specllava.bench import REFERENCE, WARM_UPS, Plan, TimedRun, measure, pool, prompts_of, results_of, runners_of
from specllava.config import DecodingConfig
from specllava.distill.rows import BenchDialogue
from specllava.metrics import RunTotals

SHORT = DecodingConfig(max_new_tokens=12, depth=4, nodes=8, min_log_prob=-50.0)
QUICK = Plan("tiny", rounds=1, warm_ups=0)
ASSISTED = ("transformers-assisted", "transformers-assisted-sighted")


def single(number):
    """Chat ``number`` of the tiny models as a dialogue of one turn."""
    seen, texts = models.CHATS[number]
    return BenchDialogue(f"chat {number}", "any", texts[:1], () if seen is None else (models.picture(seen),))


@pytest.mark.parametrize(("kind", "seed"), [("bad", 0), ("perfect", 0), ("mixed", 1)])
def test_every_lane_says_what_the_target_alone_says(kind, seed):
    """With an end in the middle: tokens behind it are counted nowhere."""
    for number in (0, 3):
        end = models.reference(number, seed)[7]
        pair = models.pair(kind, seed, eos=end)
        runners = runners_with_transformers(pair, SHORT)
        assert {REFERENCE, "entropy", "chain", "prompt-lookup", *ASSISTED} <= set(runners)
        prompt = models.prompt(number, seed)
        expected = models.expected(number, seed, 12, [end])
        for name, run in runners.items():
            found = run(prompt)
            assert found.token_ids == expected, name
            assert found.totals.tokens == len(expected), name
            assert 0 <= found.totals.accepted <= min(found.totals.step_tokens, found.totals.drafted), name
            assert found.totals.wall_seconds >= found.totals.decode_seconds, name


def test_a_lane_that_cannot_be_had_costs_one_line_when_it_is_named_and_is_else_left_out():
    drawn, pair = replace(SHORT, temperature=1.0), models.pair("mixed")
    cases = (
        ("mixed", SHORT, "oak", "there is no lane oak: choose among target-only"),
        (None, SHORT, "entropy", "has no draft: make one with"),
        (None, SHORT, "transformers-assisted", "has no draft"),
        ("mixed", SHORT, "transformers-compiled", "CUDA"),
        ("mixed", drawn, "transformers", "temperature"),
    )
    for kind, config, name, said in cases:
        asked = models.pair(kind), config, (name,)
        assert said in complaint(lambda asked=asked: runners_with_transformers(*asked))
    lanes = {REFERENCE, "prompt-lookup", "transformers", "transformers-prompt-lookup"}
    assert {*runners_with_transformers(models.pair(None), SHORT)} == lanes
    assert not {*runners_with_transformers(pair, drawn)} & {*TRANSFORMERS_LANES}


def test_the_turns_of_a_dialogue_follow_the_targets_own_answers():
    """Each lane reads a later turn afresh, so that none has read more of it than another."""
    pair = models.pair("mixed")
    dialogue = BenchDialogue("talk", "dialogue", ("What is it?", "Where is it?"), (models.picture(0),))
    first, second = prompts_of(pair, dialogue, SHORT)
    text = pair.generate(models.picture(0), "What is it?", replace(SHORT, drafter="none")).text
    chat = [
        {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": text},
        {"role": "user", "content": "Where is it?"},
    ]  # fmt: skip
    assert second.input_ids.tolist() == pair.prompt(models.picture(0), chat).input_ids.tolist()
    assert second.length > first.length and second.image_inputs


def test_a_dialogue_ends_where_it_outgrows_the_context_and_a_question_that_never_fits_is_named():
    pair = replace(models.pair("mixed"), context_limit=models.prompt(0).length + 40)
    long = BenchDialogue("row 3", "dialogue", ("Describe this.", "word " * 60), (models.picture(0),))
    assert len(list(prompts_of(pair, long, SHORT))) == 1
    with pytest.raises(ValueError, match=r"^row 3: .* do not fit the context"):
        list(prompts_of(pair, replace(long, turns=long.turns[1:]), SHORT))


def test_every_lane_is_warmed_up_on_the_first_prompts_and_that_is_not_counted():
    pair = models.pair(None)
    target_only = runners_of(pair, SHORT, ("prompt-lookup",))[REFERENCE]
    times = iter([8.0] * 2 * WARM_UPS + [1.0, 2.0, 3.0])

    def timed(prompt):
        run = target_only(prompt)
        return replace(run, totals=replace(run.totals, wall_seconds=next(times)))

    plan = replace(QUICK, warm_ups=WARM_UPS)
    found = measure(pair, [single(3), single(0), single(3)], {REFERENCE: timed}, SHORT, plan)
    assert [run.totals.wall_seconds for run in found.runs[REFERENCE]] == [1.0, 2.0, 3.0]


def test_speed_is_told_over_the_fastest_lane_of_the_target_alone():
    pair, plan = models.pair(None), replace(QUICK, alone=(REFERENCE, TRANSFORMERS, COMPILED))
    run = runners_of(pair, SHORT, ("prompt-lookup",))[REFERENCE]

    def taking(seconds):
        def timed(prompt):
            found = run(prompt)
            return replace(found, totals=replace(found.totals, decode_seconds=found.totals.target_passes * seconds))

        return timed

    lanes = {REFERENCE: taking(0.3), TRANSFORMERS: taking(0.2), "transformers-assisted": taking(0.1)}
    found = measure(pair, [single(3)], lanes, SHORT, plan)
    assert found.reference == TRANSFORMERS
    speeds = {name: lane.speedup.value for name, lane in results_of(found).items()}
    assert speeds == pytest.approx({REFERENCE: 2 / 3, TRANSFORMERS: 1.0, "transformers-assisted": 2.0}, rel=0.01)


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
    row_of_one = pool({name: [run_of((1, 2, 3), 1, 0.1)] * 6 for name in runs}, [0, 0, 0])["chain"].as_json()
    assert row_of_one["interval"] is None, "turns of a dialogue and rounds are drawn together"
    assert row["ms_per_token_wall"] == pytest.approx(1e3 * sum(run.totals.wall_seconds for run in runs["chain"]) / 22)


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


@pytest.mark.night
def test_every_part_but_the_page_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file is written after each part; one that fails costs no other."""
    path, seen = tmp_path / "gpu.json", list[list[str]]()

    def broken(bench: gpu.Bench) -> dict[str, Any]:
        seen.append(list(json.loads(path.read_text(encoding="utf-8"))["parts"]))
        raise RuntimeError("two\nlines")

    parts = gpu.parts_of("random-toy", "bfloat16")
    *names, last = parts
    assert last == "page"
    monkeypatch.setattr(gpu, "parts_of", lambda *given: {name: parts[name] for name in names} | {"broken": broken})
    assert gpu.main("random-toy", 1e9, path, "cpu") == 1
    report = json.loads(path.read_text(encoding="utf-8"))
    errors = {name: part["error"] for name, part in report["parts"].items()}
    assert errors == dict.fromkeys(names) | {"broken": "RuntimeError: two lines"} and seen == [names]
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert found["drafting, eagle"]["nodes"] == found["drafting, own"]["nodes"] == 60
    for name, answers in found.items():
        for lane, one in answers.items() if name.startswith("known answer") else ():
            if isinstance(one, dict):
                assert one["differ"] == 0 or name == "known answer, bfloat16", (name, lane)
                assert one["speedup"] == pytest.approx(answers["alone_ms_token"] / one["ms_token"])
    assert {goal["goal"] for goal in report["goals"]} >= {"target passes, over_one_row, 32", "drafting, eagle, cycle"}
