"""The coin in numbers: frames name every draw of a step, and the lesson tells of a refusal that its race holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import models

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace
from visual.figures.labels import token_label
from visual.player.draws import draws_of, sampling_of
from visual.player.lessons import load_lessons


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("best", {"max_branches": 3, "entropy_threshold": 0.0}),
        ("best", {"drafter": "none", "rule": "fixed", "children": "drawn"}),
        ("drawn", {"rule": "sequoia", "children": "drawn", "nodes": 6, "depth": 3}),
    ],
)
def test_frames_tell_every_draw_with_its_words_and_node(kind: str, options: dict[str, Any]) -> None:
    for seed in range(5):
        config = DecodingConfig(temperature=1.2, seed=seed, max_new_tokens=12, **options)
        trace = models.decode(models.pair("mixed"), models.prompt(seed % 4), config)
        assert sampling_of(trace) == kind
        for step in trace.steps:
            told = draws_of(trace, step)
            assert len(told) == len(step.draws) > 0
            for entry, draw in zip(told, step.draws, strict=True):
                assert entry["words"][entry["place"]] == token_label(trace, draw.token)
                child = entry["child"]
                family = step.tree.children()[draw.node]
                assert (child in family and step.tree.tokens[child] == draw.token) if child else draw.acceptance is None
                assert any(entry["guessed"]) == any(step.tree.tokens[n] in draw.tokens for n in family)


def test_a_greedy_run_has_no_coin() -> None:
    trace: DecodeTrace = models.decode(models.pair("mixed"), models.prompt(0), DecodingConfig(max_new_tokens=12))
    assert sampling_of(trace) is None and not any(draws_of(trace, step) for step in trace.steps)


def test_the_lesson_about_the_coin_shows_a_refusal_and_the_draw_after_it() -> None:
    lessons = load_lessons(Path(__file__).resolve().parents[1] / "assets" / "lessons")
    lesson = next(lesson for lesson in lessons if lesson.text.place == "coin")
    trace = lesson.race.speculative
    assert trace is not None and trace.config.temperature > 0 and trace.config.children == "drawn"
    told = lesson.text.question + lesson.text.answer
    for before, after in zip(step_draws := trace.steps[lesson.text.step].draws, step_draws[1:], strict=False):
        numbers = (before.uniform, before.acceptance, before.target_prob, before.draft_prob)
        if not before.accepted and all(f"{number:.2f}" in told for number in numbers):
            assert after.acceptance is None and after.node == before.node
            assert f"fell on “{trace.texts[after.token].strip()}”" in told
            return
    raise AssertionError("the lesson tells of no refusal in its step")
