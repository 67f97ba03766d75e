"""The page held to its limits in a browser: accessible, quick enough for a long run, small enough to send."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.browser import Visit, Visitor, assert_accessible
from support.visual_traces import synthetic_race, synthetic_steps

from benchmarks.page import DRAWN, step_seconds
from specllava.core.config import DecodingConfig
from visual.player.frames import recorded_frames
from visual.player.standalone import standalone_page

STEPS, NODES = 256, 64
ROUNDS = 5


def test_axe_finds_no_serious_violation(visit: Visitor) -> None:
    tab = visit()
    tab.lesson(0)
    tab.page.wait_for_selector(".lesson:not([hidden])")
    for fold in tab.page.locator("summary:visible").all():
        fold.click()
    assert_accessible(tab.page)


def test_a_lesson_asks_first_and_answers_on_request(tab: Visit) -> None:
    assert not tab.page.locator(".lesson").is_visible()
    tab.lesson(0)
    tab.page.wait_for_selector(".lesson:not([hidden])")
    assert tab.text(".lesson-question").endswith("?") and not tab.text(".lesson-answer")
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 3 ')")
    tab.page.click("[data-lesson=answer]")
    assert "Because" in tab.text(".lesson-answer")
    tab.page.locator("button.example").first.click()
    tab.page.wait_for_selector(".lesson", state="hidden")


def test_pruned_guesses_are_drawn_when_switched_on(visit: Visitor) -> None:
    tab = visit()
    points = "document.querySelectorAll('.tree .tracepruned .point').length"
    assert tab.page.evaluate(points) == 0
    tab.page.click(".with-pruned input")
    tab.wait(f"{points} > 0")
    tab.page.click(".chosen .table summary")
    assert "pruned" in tab.text(".chosen .table tbody")


def written_run(path: Path, count: int, show: int | None = None) -> Path:
    """A page of its own with that many steps of large trees, opened at the first or another one."""
    config = DecodingConfig(depth=12, nodes=NODES, width=8, max_new_tokens=4096)
    lanes = synthetic_race(1, config)
    steps = synthetic_steps(random.Random(1), config, count, least=NODES - 14)
    lanes["speculative"] = replace(lanes["speculative"], steps=steps)
    frames = recorded_frames(lanes["target-only"], lanes["speculative"], show=show)
    assert sum(len(frame.encode()) for frame in frames) < 3_000_000
    path.write_text(standalone_page(frames), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_run(tmp_path_factory.mktemp("long") / "run.html", STEPS)


@pytest.mark.night
def test_steps_are_timed_from_the_first_on_wherever_the_run_opens(tmp_path: Path, browser: object) -> None:
    run = written_run(tmp_path / "run.html", DRAWN + 1, show=DRAWN)
    assert len(step_seconds(browser, run.as_uri(), 1)) == 1
    with pytest.raises(SystemExit, match=f"{DRAWN + 1} steps, {2 * DRAWN + 1} are needed"):
        step_seconds(browser, run.as_uri(), 2)


@pytest.mark.alone
@pytest.mark.night
def test_a_long_run_steps_smoothly(long_run: Path, browser: object) -> None:
    """Under 50 ms a step on the thread that draws, in its processor time."""
    spent = step_seconds(browser, long_run.as_uri(), ROUNDS)
    assert 0 < min(spent) < 0.050, spent
