"""What the lab says and draws: every number stands in the findings, and the answers are honest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from PIL import Image
from support.lab_traces import (
    FakeLab,
    synthetic_ablation,
    synthetic_sweep,
    with_tree_comparison,
)
from support.visual_traces import first_steps

from specllava.config import RULES, DecodingConfig
from specllava.metrics import drafted_tokens
from specllava.trace import StepSeconds
from specllava.findings.ablation import Ablation
from specllava.findings.sweep import Sweep
from visual.figures.ablation_charts import distillation_chart, image_ablation_chart
from visual.figures.sweep_charts import RULE_MARKERS, rules_chart, sweep_chart
from visual.page.lab import EXPERIMENTS
from visual.page.lab_views import distillation_view, image_ablation_view, rules_view, sweep_view

CONFIG = DecodingConfig()
HOSTILE = dict.fromkeys(range(2, 40), " <b onload=x>")


def swept(field: str, values: Sequence[str | float]) -> Sweep:
    *_, found = synthetic_sweep(field, values, CONFIG)
    return found


def compared(*names: str, texts: dict[int, str] | None = None) -> Ablation:
    *_, found = synthetic_ablation(names, CONFIG, texts)
    return found


def test_every_rule_is_a_point_with_its_own_symbol_and_yours_is_marked():
    found = swept("rule", RULES)
    chart = rules_chart(found)
    *rules, alone = chart.figures[0].data
    assert [(trace.x[0], trace.y[0]) for trace in rules] == [
        (round(point.summary.tau, 3), round(point.speedup, 3)) for point in found.points
    ]
    assert len({trace.marker.symbol for trace in rules}) == len({trace.marker.color for trace in rules}) == len(RULES)
    assert [trace.name for trace in rules if "yours" in trace.name] == ["entropy (yours)"]
    assert (alone.x[0], alone.y[0]) == (1, 1)
    fastest = max(found.points, key=lambda point: point.speedup)
    assert chart.answer.startswith(f"Fastest here: {fastest.value}, {fastest.speedup:.1f}×")
    assert "token for token" in chart.answer
    assert [row[0].split()[0] for row in chart.rows] == list(RULES)


@pytest.mark.parametrize(
    ("best", "words"),
    [(1.8, "Fastest here: "), (1.04, "As fast as the target alone; best here: "), (0.9, "None is as fast as")],
)
def test_the_best_rule_is_set_against_the_target_alone(best: float, words: str):
    found = swept("rule", RULES)
    most = max(point.speedup for point in found.points)
    seconds = (StepSeconds(verify=step.seconds.total * best / most) for step in found.alone.steps)
    steps = tuple(replace(step, seconds=own) for step, own in zip(found.alone.steps, seconds, strict=True))
    assert words in rules_chart(replace(found, alone=replace(found.alone, steps=steps))).answer


def test_a_knob_is_a_curve_with_the_present_setting_on_it():
    found = swept("depth", (2, 4, CONFIG.depth, 12))
    chart = sweep_chart(found)
    for figure in chart.figures:
        curve, yours = figure.data
        assert list(curve.x) == [2, 4, CONFIG.depth, 12]
        assert list(yours.x) == [CONFIG.depth] and yours.y[0] == curve.y[2]
    assert f"{CONFIG.depth} (yours)" in {row[0] for row in chart.rows}


def test_a_run_that_says_something_else_is_named():
    found = swept("rule", RULES)
    value, trace = found.runs[1]
    other = replace(trace.prefill, first_token=trace.steps[0].emitted[-1])
    odd = replace(found, runs=(found.runs[0], (value, replace(trace, prefill=other)), *found.runs[2:]))
    chart = rules_chart(odd)
    assert "Other tokens than the target alone: chain" in chart.answer
    assert dict(zip(RULES, (row[-1] for row in chart.rows), strict=True))["chain"] == "no"


def test_seeing_is_answered_with_the_numbers_of_the_runs_and_sometimes_with_no():
    found = compared("the picture", "a blank picture", "another picture")
    one, two, three = (side.tau for side in found.results)
    helped = one > max(two, three)
    answer = image_ablation_chart(found).answer
    assert answer.startswith("Yes" if helped else "Not on this answer")
    assert f"with the picture {one:.1f}, with a blank picture {two:.1f} and with another picture {three:.1f}" in answer
    best = max(found.results, key=lambda side: side.tau)
    worst = min(found.results, key=lambda side: side.tau)
    for first, start in ((best, "Yes"), (worst, "Not on")):
        others = [side for side in found.results if side is not first]
        assert image_ablation_chart(replace(found, results=(first, *others))).answer.startswith(start)


def test_doubt_is_averaged_over_small_words_and_all_others_apart():
    found = compared("the picture", "a blank picture", "another picture")
    small, others = image_ablation_chart(found).figures[1].data
    for place, side in enumerate(found.results):
        low, high = sorted((small.y[place], others.y[place]))
        assert low <= side.scores.entropy <= high


def test_distillation_says_how_far_each_draft_stands():
    found = compared("before distillation", "after distillation")
    chart = distillation_chart(found)
    before, after = (side.scores.divergence for side in found.results)
    assert f"{after:.3f} nats" in chart.answer and f"before distillation {before:.3f}" in chart.answer
    assert list(chart.figures[1].data[0].y) == [round(before, 4), round(after, 4)]


def test_the_table_and_the_words_have_an_entry_per_token():
    found = compared("the picture", "a blank picture", "another picture")
    progress, view = image_ablation_view(found)
    trace = found.results[0].trace
    assert progress == "" and len(view["rows"]) == len(view["gloss"]["words"]) == len(trace.token_ids)
    for place, word in enumerate(view["gloss"]["words"]):
        verdicts = [mark["verdict"] for mark in word["marks"]]
        if place == 0:
            assert verdicts == ["first"] * 3
        else:
            taken = [drafted_tokens(side.trace)[place] for side in found.results]
            assert verdicts == ["drafted" if one else "target" for one in taken]


def test_trees_of_one_place_are_drawn_for_every_side():
    found = with_tree_comparison(compared("before distillation", "after distillation"))
    _, view = distillation_view(found)
    (comparison,) = view["closeups"]
    assert [tree["name"] for tree in comparison["trees"]] == ["before distillation", "after distillation"]
    assert all({"data", "layout"} <= set(tree["figure"]) for tree in comparison["trees"])


def test_a_rule_is_drawn_with_a_colour_and_a_symbol_of_its_own():
    """A list beside the chart gave them by position, and began anew with the seventh rule."""
    points = rules_chart(swept("rule", RULES)).figures[0].data[: len(RULES)]
    looks = [(RULE_MARKERS[rule]["color"], RULE_MARKERS[rule]["symbol"]) for rule in RULES]
    assert [*RULE_MARKERS] == [*RULES] and all(len(set(own)) == len(RULES) for own in zip(*looks, strict=True))
    assert [(point.marker.color, point.marker.symbol) for point in points] == looks


def test_a_sweep_that_is_stopped_tells_how_far_each_run_came():
    found = swept("rule", RULES)
    runs = tuple((value, first_steps(run, 2)) for value, run in found.runs)
    chart = rules_chart(replace(found, alone=first_steps(found.alone, 9), runs=runs))
    assert "token for token" in chart.answer and {row[-1] for row in chart.rows} == {"yes"}
    assert rules_view(replace(found, runs=runs))[0] == f"0 of {len(RULES)} rules"
    assert rules_chart(replace(found, alone=first_steps(found.alone, 0))).rows == ()


def test_a_word_is_named_whole_though_it_has_parts():
    found = compared("the picture", "a blank picture", "another picture")
    trace = found.results[0].trace
    place = next(place for place, token in enumerate(trace.token_ids) if trace.texts[token] == "rella")
    words = [token == trace.token_ids[place] and at == place for at, token in enumerate(trace.token_ids)]
    sure, unsure = (tuple(p if here else 0.5 for here in words) for p in (0.9, 0.1))
    one, two, three = found.results
    seen = replace(one, scores=replace(one.scores, probs=sure))
    blind = replace(two, scores=replace(two.scores, probs=unsure))
    assert "mattered most in: umbrella." in image_ablation_chart(replace(found, results=(seen, blind, three))).answer


def test_progress_is_in_words():
    found = list(synthetic_sweep("rule", RULES, CONFIG))
    assert [rules_view(one)[0] for one in found[:3]] == [f"{done} of {len(RULES)} rules" for done in range(3)]
    assert rules_view(found[-1])[0] == ""
    assert sweep_view(next(synthetic_sweep("depth", (2, 10), CONFIG)))[0] == "0 of 2 values"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
@pytest.mark.parametrize("tokens", [1, 2, 160])
def test_every_finding_can_be_shown_however_short_the_answer(experiment, tokens: int):
    own = {"sweep": "nodes", "image-ablation": Blank(), "drafters": {"draft VLM": None}}
    more = own.get(experiment.name)
    found = experiment.start(FakeLab(HOSTILE), Blank().open(), "What?", more, replace(CONFIG, max_new_tokens=tokens))
    for one in found:
        _, view = experiment.view(one)
        text = json.dumps(view, allow_nan=False)
        assert view["answer"].endswith(".") and "nan" not in view["answer"]
        assert {len(row) for row in view["rows"]} <= {len(view["columns"])}
        figures = [*view["figures"], *(tree["figure"] for c in view.get("closeups", ()) for tree in c["trees"])]
        assert "<b onload" not in json.dumps(figures) and text


class Blank:
    """A picture, as the page has them."""

    def open(self) -> Image.Image:
        return Image.new("RGB", (8, 8))

    preview = open


def test_points_of_rules_are_labelled_beside_them() -> None:
    """Six colours and shapes had to be looked up in a legend."""
    figure = rules_chart(swept("rule", RULES)).figures[0]
    assert not figure.layout.showlegend
    assert [point.text[0].split()[0] for point in figure.data] == [*RULES, "target"]
    assert all("text" in point.mode for point in figure.data)
