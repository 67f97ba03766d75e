"""Quantisation and speculation together (docs/notes/science.md): medians, products and intervals done anew."""

from __future__ import annotations

import json

import pytest
from test_bench_results import run_of

from benchmarks import quantised_speed
from specllava.core.config import DecodingConfig

SHORT = DecodingConfig(max_new_tokens=8, nodes=8, depth=4)


def lanes(alone, drafted, answer=tuple(range(11))):
    """Runs of 10 tokens after the first: alone in 10 steps of the given seconds, drafted in 5."""
    pairs = (("target-only", 1, alone), ("speculative", 2, drafted))
    return {name: [run_of(answer, step, each) for each in seconds] for name, step, seconds in pairs}


def test_a_prompts_time_is_the_median_of_its_rounds():
    rounds = [*(0.2, 0.4), *(0.3, 9.0), *(7.0, 0.3)]  # two prompts, three rounds, each disturbed once
    runs = lanes(rounds, rounds)["target-only"]
    assert quantised_speed.tokens_and_seconds(runs, 2) == [(10, pytest.approx(3.0)), (10, pytest.approx(4.0))]


def test_speed_ups_are_those_of_one_prompt_after_another_and_of_both_together():
    """Two prompts: an interval ends at the figures of each alone, which is as far as drawing them reaches."""
    whole, own = lanes((0.4, 0.4), (0.4, 0.2)), lanes((0.2, 0.1), (0.2, 0.1), (*range(10), 77))
    row = quantised_speed.speed_row(own, whole, 2)
    assert row["ms_alone"]["value"] == pytest.approx(1e3 * (2 + 1) / 20)
    assert row["ms"]["value"] == pytest.approx(1e3 * (1 + 0.5) / 20)
    quantisation = (4 + 4) / (2 + 1)
    assert row["quantisation"]["value"] == pytest.approx(quantisation, abs=1e-5)
    assert row["speculation"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert row["both"]["value"] == pytest.approx(2 * quantisation, abs=1e-5)
    product = (8 / 3) * (8 / 3)  # by float32's speculation, which halves one prompt and quarters the other
    assert row["product"]["value"] == pytest.approx(product, abs=1e-5)
    assert row["both_over_product"]["value"] == pytest.approx(16 / 3 / product, abs=1e-5)
    ends = [(4 / 1) / (2 * 2), (4 / 0.5) / (4 * 4)]
    assert (row["both_over_product"]["high"], row["both_over_product"]["low"]) == pytest.approx(ends, abs=1e-5)
    assert row["unlike_float32"] == 2
    assert quantised_speed.speed_row(whole, whole, 2)["both_over_product"] == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_every_target_is_timed_and_compared_with_itself(tmp_path, monkeypatch, shipped, capsys):
    kept = ("float32", "bfloat16")
    monkeypatch.setattr(quantised_speed, "TARGETS", {name: quantised_speed.TARGETS[name] for name in kept})
    monkeypatch.setattr(quantised_speed, "WARM_UP", 1)
    pairs = {dtype: shipped(dtype) for dtype in kept}
    monkeypatch.setattr("specllava.pair.Pair.from_preset", lambda name, dtype, **options: pairs[dtype])
    file = tmp_path / "speed.json"
    quantised_speed.main(quantised_speed.TimedConfig(decoding=SHORT, prompts=2, rounds=1, json=file))
    rows = json.loads(file.read_text())["rows"]
    assert list(rows["targets"]) == [*kept] and {"cpu", "before", "after"} <= set(rows["machine"])
    whole, half = rows["targets"].values()
    assert (whole["differ"], whole["unlike_float32"], whole["answers"]) == (0, 0, 2)
    assert whole["quantisation"]["value"] == whole["both_over_product"]["value"] == 1.0
    for row in (whole, half):
        found = {name: one["value"] for name, one in row.items() if isinstance(one, dict)}
        assert found["both"] == pytest.approx(found["speculation"] * found["quantisation"], rel=1e-3)
        assert found["speculation"] == pytest.approx(found["ms_alone"] / found["ms"], rel=1e-3)
        assert found["tau"] >= 1 and found["kl"] > 0
    assert "| both over product |" in capsys.readouterr().out


def test_timed_answers_are_those_of_generate(shipped):
    pair = shipped("float32")
    config = quantised_speed.TimedConfig(decoding=SHORT, prompts=1, rounds=1)
    *_, asked = config.questions(more=quantised_speed.WARM_UP)
    prompt = pair.prompt(asked.image, asked.text)
    runs = quantised_speed.measure({"float32": pair}, {"float32": [prompt] * 3}, config)["float32"]
    ids = prompt.input_ids
    expected = pair.target.generate(input_ids=ids, **prompt.image_inputs, max_new_tokens=8, do_sample=False)
    assert [list(run.token_ids) for own in runs.values() for run in own] == 2 * expected[:, ids.shape[1] :].tolist()
