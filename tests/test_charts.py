"""Charts of whole runs: every number in them can be counted in the trace."""

from __future__ import annotations

import json

import pytest
from support.visual_traces import first_steps, retexted, synthetic_race

from benchmarks import picture
from specllava.core.config import DecodingConfig
from specllava.core.growth.rules import RULE_INFOS
from specllava.core.metrics import judged_nodes, summarise
from visual.figures.chart import Chart
from visual.figures.charts import charts
from visual.figures.labels import FUNCTION_WORDS

SEEDS = range(6)


def chart(seed: int, word: str) -> tuple[Chart, dict]:
    lanes = synthetic_race(seed)
    (found,) = [c for c in charts(lanes["target-only"], lanes["speculative"]) if word in c.question]
    return found, lanes


@pytest.mark.parametrize("seed", SEEDS)
def test_each_chart_asks_and_answers_in_words_picture_and_table(seed: int):
    lanes = synthetic_race(seed)
    made = charts(lanes["target-only"], lanes["speculative"])
    assert len({c.question for c in made}) == len(made) == 5
    for one in made:
        assert one.question.endswith("?") and one.answer.endswith(".") and all(figure.data for figure in one.figures)
        assert {len(row) for row in one.rows} == {len(one.columns)}
        json.dumps(one.as_json(), allow_nan=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_accepted_lengths_add_up(seed: int):
    how_far, lanes = chart(seed, "How far")
    summary = summarise([lanes["speculative"]])
    assert sum(int(accepted) for _, _, accepted in how_far.rows) == summary.accepted
    assert sum(int(drafted) for _, drafted, _ in how_far.rows) == summary.drafted
    assert sum(how_far.figures[1].data[0].y) == summary.target_passes


@pytest.mark.parametrize("seed", SEEDS)
def test_every_tested_guess_is_in_the_reliability_table_once(seed: int):
    doubt, lanes = chart(seed, "doubt")
    steps = lanes["speculative"].steps
    tested = sum(len(judged.children) for step in steps for judged in judged_nodes(step))
    assert sum(int(row[1]) for row in doubt.rows if row[0].startswith("probability")) == tested


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hardest_words_are_those_before_which_the_draft_was_most_unsure(seed: int):
    words, lanes = chart(seed, "words")
    doubts = sorted((j.entropy for s in lanes["speculative"].steps for j in judged_nodes(s)), reverse=True)
    assert [row[2] for row in words.rows] == [f"{nats:.2f}" for nats in doubts[: len(words.rows)]]
    assert sum(len(bars.x) for bars in words.figures[0].data) == len(words.rows)
    assert {"the", "of"} <= FUNCTION_WORDS


@pytest.mark.parametrize("seed", SEEDS)
def test_time_is_that_of_the_steps(seed: int):
    time, lanes = chart(seed, "time")
    spent = sum(sum(bar.y) for bar in time.figures[0].data[:3])
    assert spent == pytest.approx(1e3 * lanes["speculative"].decode_seconds, abs=0.01)
    alone = 1e3 * summarise([lanes["target-only"]]).seconds_per_token
    emitted = sum(len(step.emitted) for step in lanes["speculative"].steps)
    assert sum(time.figures[0].data[3].y) == pytest.approx(alone * emitted, abs=0.1)


def test_nothing_drafted_leaves_nothing_to_ask():
    lanes = synthetic_race(0, DecodingConfig(drafter="none"))
    assert charts(lanes["target-only"], lanes["speculative"]) == []


def test_runs_that_were_stopped_early_have_charts_too():
    lanes = synthetic_race(0)
    for alone, together in ((0, 1), (1, 1), (3, 2)):
        for one in charts(first_steps(lanes["target-only"], alone), first_steps(lanes["speculative"], together)):
            assert "nan" not in one.answer
            json.dumps(one.as_json(), allow_nan=False)


def test_words_of_the_model_are_escaped_in_figures():
    lanes = synthetic_race(1)
    hostile = retexted(lanes["speculative"], dict.fromkeys(lanes["speculative"].texts, " <b onload=x>"))
    for one in charts(lanes["target-only"], hostile):
        for figure in one.figures:
            assert "<b onload" not in figure.to_json().replace("\\u003c", "<")


def test_the_picture_of_a_benchmark_has_every_lane_and_marks_of_its_own_for_each():
    """Lanes of rules that a list beside it did not name were left out without a word."""
    row = {"speedup": 1.2, "tau": 2.0}
    names = [*RULE_INFOS, "entropy deep", "my-rule", "prompt-lookup", "target-only"]
    drawn = picture.figure(dict.fromkeys(names, row), "title").data
    assert sum(len(trace.x) for trace in drawn) == len(names) - 1
    marks = [(trace.marker.color, trace.marker.symbol) for trace in drawn]
    assert len(set(marks)) == len(marks) and set(marks) > {(i.colour, i.symbol) for i in RULE_INFOS.values()}
