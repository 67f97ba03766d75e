"""Charts of whole runs: every number in them can be counted in the trace."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache

import pytest
from support.shipped_races import shipped_races, shown_traces
from support.visual_traces import first_steps, retexted, synthetic_race

from specllava.config import DecodingConfig
from specllava.metrics import judged_nodes, summarise
from specllava.trace import DecodeTrace
from visual.figures.charts import Chart
from visual.figures.charts import FEWEST, NATS, OUTCOMES, UNSURE, charts
from visual.figures.labels import FUNCTION_WORDS

SEEDS = range(6)
COUNTING = ("How far", "break", "time")  # words in the questions of charts whose places are counts


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


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it, of two colours such as ``#0072B2``."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_inside_bars_can_be_read_on_them() -> None:
    doubt, _ = chart(1, "doubt")
    bars = [bar for bar in doubt.figures[0].data if bar.type == "bar"]
    assert len(bars) == len(OUTCOMES)
    for bar in bars:
        assert contrast(bar.insidetextfont.color, bar.marker.color) >= 4.5


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


@cache
def shown_charts() -> tuple[tuple[DecodeTrace, list[Chart]], ...]:
    """The shipped and synthetic traces with their charts, which take a while."""
    return tuple((trace, charts(None, trace)) for trace in shown_traces())


def shown(word: str) -> list[tuple[DecodeTrace, Chart]]:
    """Every trace with its chart of that word."""
    return [(trace, one) for trace, made in shown_charts() for one in made if word in one.question]


def test_the_chart_of_doubt_stacks_what_came_of_it() -> None:
    for trace, doubt in shown("doubt"):
        judged = [each for step in trace.steps for each in judged_nodes(step) if each.entropy is not None]
        bars = dict(zip(OUTCOMES, doubt.figures[0].data, strict=True))
        assert doubt.figures[0].layout.barmode == "stack"
        for place in range(len(NATS) + 1):
            low, high = (*(-1.0, *NATS), 1e9)[place : place + 2]
            counts = Counter(each.outcome for each in judged if low < (each.entropy or 0) <= high)
            assert [bar.text[place] or "0" for bar in bars.values()] == [str(counts[name]) for name in OUTCOMES]
            if counts:
                assert sum(bar.y[place] for bar in bars.values()) == pytest.approx(1, abs=1e-3)
        unsure = Counter(each.outcome for each in judged if (each.entropy or 0) > UNSURE)
        told = f"{unsure['favourite']} of {unsure.total()}, another branch saved {unsure['saved']} and"
        assert told in doubt.answer or not unsure


def test_the_chart_of_doubt_of_the_opening_example_counts_seven_saved() -> None:
    first = next(race for race in shipped_races() if race.name == "1-describe").lead
    (doubt,) = [one for trace, one in shown("doubt") if trace is first]
    assert "17 of 26, another branch saved 7 and 2 were missed" in doubt.answer


def test_counting_axes_have_whole_ticks_and_a_least_width() -> None:
    short = [charts(None, first_steps(trace, count)) for trace in shown_traces()[::4] for count in (1, 2)]
    for made in (*short, *(whole for _, whole in shown_charts())):
        figures = [one.figures for one in made if any(word in one.question for word in COUNTING)]
        assert len(figures) == len(COUNTING)
        for figure in (figure for group in figures for figure in group):
            axis = figure.layout.xaxis
            assert isinstance(axis.dtick, int) and isinstance(axis.tick0, int)
            assert axis.range[1] - axis.range[0] >= FEWEST


def test_the_chart_of_hard_words_fills_its_card() -> None:
    for trace, words in shown("words"):
        assert len(words.figures) == 2
        places = sum(len(judged_nodes(step)) for step in trace.steps)
        assert len(words.rows) == min(10, places)
        low, high = words.figures[0].layout.yaxis.range
        assert high - low >= FEWEST and all(bars.width <= 0.7 for bars in words.figures[0].data)


def test_accepted_tokens_and_the_targets_own_make_tau() -> None:
    for trace, how_far in shown("How far"):
        answer = how_far.answer
        mean = sum(len(step.emitted_nodes) for step in trace.steps) / len(trace.steps)
        own = sum(len(step.emitted) - len(step.emitted_nodes) for step in trace.steps)
        assert answer.startswith(f"On average {mean:.1f} of ") and f"on top in {own}:" in answer
        assert f"τ = {summarise([trace]).tau:.1f} tokens per target pass" in answer
        assert mean + own / len(trace.steps) == pytest.approx(summarise([trace]).tau)


def test_no_chart_uses_a_second_name_for_a_ratio() -> None:
    for _, made in shown_charts():
        for one in made:
            assert not re.search(r"\b(rest|prefill|tokens a (pass|step))\b", f"{one.answer} {one.columns}", re.I)
