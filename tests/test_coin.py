"""The coin in numbers: the browser's tosses have the target's distribution, and wrong verifiers miss as computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import models
from support.browser import script_page

from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace
from visual.figures.labels import token_label
from visual.player.draws import draws_of, sampling_of
from visual.player.lessons import load_lessons

TOSSES, WORDS, SEEDS = 20_000, 6, 40
# The mean of the total variation is at most half the root of words per toss; it lies 0.02 above once in 9 million.
CHANCE = math.sqrt(WORDS / TOSSES) / 2 + 0.02
TALLY = """({p, q, guessed, tosses, seed}) => {
  const m = window.script;
  const rest = m.residual(p, q);
  const ways = {
    right: (random) => m.judge(p, q, rest, random), wrong: (random) => m.judge(p, q, p, random),
    own: (random) => m.own(p, guessed, false, random), again: (random) => m.own(p, guessed, true, random),
  };
  const shares = {};
  for (const [name, way] of Object.entries(ways)) {
    const random = m.createRandom(seed);
    const counts = p.map(() => 0);
    for (let toss = 0; toss < tosses; toss += 1) counts[way(random)] += 1;
    shares[name] = counts.map((count) => count / tosses);
  }
  const limits = { wrong: m.redrawnFromTarget(p, q), again: m.drawnAgain(p, guessed) };
  const off = Object.fromEntries(Object.entries(shares).map(([name, share]) => [name, m.totalVariation(share, p)]));
  return { shares, limits, rest, off };
}"""
Probs = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def tally(browser: Any) -> Iterator[Any]:
    """The browser's own arithmetic, with no page around it."""
    with script_page(browser, "coin_math.js") as page:
        yield lambda **given: page.evaluate(TALLY, given)


def off(left: Probs, right: Probs) -> float:
    return float(np.abs(left - right).sum() / 2)


def worlds() -> Iterator[tuple[int, Probs, Probs, list[bool]]]:
    """Distributions of many kinds, some with words that only one of both has."""
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        p, q = (rng.dirichlet(np.full(WORDS, rng.choice((0.2, 1.0, 5.0)))) for _ in range(2))
        if seed % 4 == 0:
            p[rng.integers(WORDS)] = q[rng.integers(WORDS)] = 0.0
        yield seed, p / p.sum(), q / q.sum(), (rng.random(WORDS) < 0.5).tolist()


def test_tosses_of_the_right_verifier_cover_p_and_those_of_the_wrong_ones_miss_it_as_computed(tally: Any) -> None:
    missed = 0
    for seed, p, q, guessed in worlds():
        found = tally(p=p.tolist(), q=q.tolist(), guessed=guessed, tosses=TOSSES, seed=seed)
        shares = {name: np.array(share) for name, share in found["shares"].items()}
        assert off(shares["right"], p) < CHANCE and off(shares["own"], p) < CHANCE
        both = np.minimum(p, q)
        redrawn = both + (1 - both.sum()) * p
        again = np.where(guessed, p, 0) + p[~np.array(guessed)].sum() * p
        assert found["limits"]["wrong"] == pytest.approx(redrawn) and found["limits"]["again"] == pytest.approx(again)
        assert off(shares["wrong"], redrawn) < CHANCE and off(shares["again"], again) < CHANCE
        rest = np.maximum(p - q, 0)
        assert found["rest"] == pytest.approx(rest / rest.sum())
        assert found["off"]["wrong"] == pytest.approx(off(shares["wrong"], p))
        missed += off(redrawn, p) > 2 * CHANCE and off(shares["wrong"], p) > CHANCE
    assert missed > SEEDS / 2


def test_the_same_seed_tosses_the_same_and_another_another(tally: Any) -> None:
    given = {"p": [0.5, 0.3, 0.2], "q": [0.2, 0.3, 0.5], "guessed": [True, False, False], "tosses": 500}
    first, same, other = (tally(**given, seed=seed)["shares"] for seed in (1, 1, 2))
    assert first == same != other


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
