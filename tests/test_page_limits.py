"""The page held to its limits in a browser: accessible, quick enough for a long run, small enough to send."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from support.browser import PATIENCE, VIEWPORT, Visit, Visitor, assert_accessible
from support.visual_traces import synthetic_race, synthetic_steps

from specllava.config import DecodingConfig
from visual.player.frames import recorded_frames
from visual.player.standalone import standalone_page

STEPS, NODES = 256, 64
ROUNDS = 5
DRAWN = 20  # steps that are timed at a time
NEXT_STEPS = """async (steps) => {
  const chart = document.querySelector(".tree");
  const next = document.querySelector("[data-do=next]");
  for (let step = 0; step < steps; step++) {
    const drawn = new Promise((resolve) => chart.once("plotly_afterplot", resolve));
    next.click();
    await drawn;
  }
}"""


def step_seconds(browser: Browser, address: str, rounds: int) -> list[float]:
    """Return seconds a step on the thread that draws, in its processor time, the mean of each round of steps."""
    page = browser.new_page(viewport=VIEWPORT)
    page.goto(f"{address}?view=workbench")  # every card, and a button for the first step
    page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
    steps = int(page.inner_text(".step-name").split()[-1])
    assert steps > DRAWN * rounds, f"the run has {steps} steps, {DRAWN * rounds + 1} are needed"
    page.click("[data-do=first]")  # a run opens at its most telling step
    page.wait_for_function("document.querySelector('.step-name').textContent.startsWith('Step 1 ')", timeout=PATIENCE)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    spent = []
    for _ in range(rounds):
        before = busy()
        page.evaluate(NEXT_STEPS, DRAWN)
        spent.append((busy() - before) / DRAWN)
    page.close()
    return spent


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
def test_steps_are_timed_from_the_first_on_wherever_the_run_opens(tmp_path: Path, browser: Browser) -> None:
    run = written_run(tmp_path / "run.html", DRAWN + 1, show=DRAWN)
    assert len(step_seconds(browser, run.as_uri(), 1)) == 1
    with pytest.raises(AssertionError, match=f"{DRAWN + 1} steps, {2 * DRAWN + 1} are needed"):
        step_seconds(browser, run.as_uri(), 2)


@pytest.mark.alone
@pytest.mark.night
def test_a_long_run_steps_smoothly(long_run: Path, browser: Browser) -> None:
    """Under 50 ms a step on the thread that draws, in its processor time."""
    spent = step_seconds(browser, long_run.as_uri(), ROUNDS)
    assert 0 < min(spent) < 0.050, spent
