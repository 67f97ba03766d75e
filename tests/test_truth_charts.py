"""What the charts say of doubt and of short answers: shipped races and synthetic ones."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.shipped_races import shipped_races, shipped_traces
from support.visual_traces import first_steps, synthetic_race

from specllava.core.metrics import judged_nodes, summarise
from specllava.core.trace import DecodeTrace
from visual.figures.chart import Chart
from visual.figures.charts import FEWEST, NATS, OUTCOMES, UNSURE, charts

COUNTING = ("How far", "break", "time")  # words in the questions of charts whose places are counts


def traces() -> list[DecodeTrace]:
    return [*shipped_traces(), *(synthetic_race(seed)["speculative"] for seed in range(6))]


def chart(trace: DecodeTrace, word: str) -> Chart:
    (found,) = [one for one in charts(None, trace) if word in one.question]
    return found


def test_d3_the_chart_of_doubt_stacks_what_came_of_it() -> None:
    """It counted "some child was right", so that the tree's own success hid the doubt: 100/100/100/91/90."""
    for trace in traces():
        doubt = chart(trace, "doubt")
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


def test_d3_the_opening_example_tells_the_seven_that_a_branch_saved() -> None:
    doubt = chart(next(race for race in shipped_races() if race.name == "1-describe").lead, "doubt")
    assert "17 of 26, another branch saved 7 and 2 were missed" in doubt.answer


def test_d23_places_on_a_counting_axis_are_whole_numbers_and_a_short_answer_is_no_block() -> None:
    """One step was one bar as wide as the chart, on an axis from 0.6 to 1.4."""
    for trace in traces():
        for count in (1, 2, len(trace.steps)):
            shown = charts(None, first_steps(trace, count))
            figures = [one.figures for one in shown if any(word in one.question for word in COUNTING)]
            assert len(figures) == len(COUNTING)
            for figure in (figure for group in figures for figure in group):
                axis = figure.layout.xaxis
                assert isinstance(axis.dtick, int) and isinstance(axis.tick0, int)
                assert axis.range[1] - axis.range[0] >= FEWEST


def test_d27_the_chart_of_hard_words_fills_its_card() -> None:
    """It was two fat bars on half a card."""
    for trace in traces():
        words = chart(trace, "words")
        assert len(words.figures) == 2
        places = sum(len(judged_nodes(step)) for step in trace.steps)
        assert len(words.rows) == min(10, places)
        low, high = words.figures[0].layout.yaxis.range
        assert high - low >= FEWEST and all(bars.width <= 0.7 for bars in words.figures[0].data)


def test_d30_accepted_tokens_and_the_targets_own_make_tau() -> None:
    """7.9 tokens a step stood beside a τ of 8.9, and nobody said how they belong together."""
    for trace in traces():
        answer = chart(trace, "How far").answer
        mean = sum(len(step.emitted_nodes) for step in trace.steps) / len(trace.steps)
        own = sum(len(step.emitted) - len(step.emitted_nodes) for step in trace.steps)
        assert answer.startswith(f"On average {mean:.1f} of ") and f"on top in {own}:" in answer
        assert f"τ = {summarise([trace]).tau:.1f} tokens per target pass" in answer
        assert mean + own / len(trace.steps) == pytest.approx(summarise([trace]).tau)


def test_d30_no_chart_speaks_of_a_rest() -> None:
    for trace in traces():
        for one in charts(None, trace):
            assert not re.search(r"\b(rest|prefill|tokens a (pass|step))\b", f"{one.answer} {one.columns}", re.I)
