"""The coin on the page: decisions one by one, their words and bars; on line and in a saved page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.amount import sample
from support.browser import SavedPages, Visitor, assert_accessible

from specllava.trace import DecodeTrace
from visual.player.frames import recorded_frames
from visual.player.lessons import load_lessons
from visual.player.recorded import read_recorded

ASSETS = Path(__file__).resolve().parents[1] / "assets"
LESSONS = ASSETS / "lessons"
LESSON = next(lesson for lesson in load_lessons(LESSONS) if lesson.text.place == "coin")
RACE = LESSONS / f"{LESSON.text.race or LESSON.text.name}.json"
TRACE = LESSON.race.lead
SHOW = LESSON.text.step
Open = Callable[..., Any]


@pytest.fixture
def saved(saved_page: SavedPages) -> Open:
    """Open a saved page at a step."""

    def open_page(trace: DecodeTrace = TRACE, step: int = SHOW, **context: Any) -> Any:
        return saved_page(recorded_frames(None, trace, show=step), **{"reduced_motion": "reduce"} | context).page

    return open_page


def unfold(page: Any) -> None:
    page.click(".coin-fold > summary")
    page.wait_for_selector(".coin-say", state="visible")


def decisions(page: Any) -> list[str]:
    """What is said of each decision of a step, from the first."""
    back, on = page.locator(".coin-bar button").all()
    while back.is_enabled():
        back.click()
    said = [page.inner_text(".coin-say")]
    while on.is_enabled():
        on.click()
        said.append(page.inner_text(".coin-say"))
    return said


def test_every_decision_of_a_step_is_told_as_it_fell(saved: Open) -> None:
    for number in sample((SHOW, 0, len(TRACE.steps) // 2), 1):
        page = saved(step=number)
        unfold(page)
        said = decisions(page)
        draws = TRACE.steps[number].draws
        assert len(said) == len(draws)
        for text, draw in zip(said, draws, strict=True):
            assert f"“{TRACE.texts[draw.token].strip()}”" in text
            if draw.acceptance is None:
                assert f"u = {draw.uniform:.2f} falls on" in text
            else:
                assert text.endswith(": kept." if draw.accepted else ": refused.")
                assert f"p = {draw.target_prob:.2f}, the draft q = {draw.draft_prob:.2f}" in text


def test_the_panel_opens_on_a_refusal_and_shows_what_is_left(saved: Open) -> None:
    page = saved()
    unfold(page)
    assert page.inner_text(".coin-say").endswith("refused.")
    assert "is what the next draw uses. Why not p itself?" in page.inner_text(".coin-why")
    page.click(".coin-panel .table summary")
    head, *rows = (row.split("\t") for row in page.inner_text(".coin-panel table").splitlines())
    assert head == ["Word", "Target p", "Draft q", "Next draw"]
    over = {word: max(float(p) - float(q), 0.0) for word, p, q, _ in rows}
    for word, _, _, rest in rows:
        assert float(rest) == pytest.approx(over[word] / sum(over.values()), abs=0.05)
    assert page.evaluate("document.querySelectorAll('.coin-part').length") == 2


@pytest.mark.night
def test_the_coin_opens_at_the_closest_call_and_no_bar_leaves_its_box(saved: Open) -> None:
    closest = 0
    for number in (SHOW, 0, len(TRACE.steps) // 2):
        draws = TRACE.steps[number].draws
        page = saved(step=number, viewport={"width": 768, "height": 1024})
        page.click(".inside-toggle")
        page.click(".phase-list button:text('accept')")
        refused = [i for i, draw in enumerate(draws) if draw.acceptance is not None and not draw.accepted]
        if refused:
            place = min(refused, key=lambda i: abs(draws[i].uniform - (draws[i].acceptance or 0)))
            assert page.inner_text(".coin-count") == f"decision {place + 1} of {len(draws)}"
            closest += 1
        for _ in draws:
            line, parts, tracks = page.evaluate("""() => {
              const boxes = (name) => [...document.querySelectorAll(name)].map((one) => one.getBoundingClientRect());
              return [boxes(".coin-line")[0].right, Math.max(...boxes(".coin-part").map((box) => box.right)),
                Math.min(...boxes(".coin-track").map((box) => box.width))];
            }""")
            assert parts <= line + 1 and tracks >= 40
            page.click(".coin-bar button >> nth=0", force=True)
    assert closest


@pytest.mark.night
def test_a_greedy_run_shows_no_coin_and_an_older_one_says_that_it_has_none(saved: Open) -> None:
    greedy = read_recorded(ASSETS / "examples" / "3-count.json").lead
    assert not saved(greedy, 0).is_visible(".coin-fold")
    document = json.loads(TRACE.to_json())
    for step in document["steps"]:
        del step["draws"]
    page = saved(DecodeTrace.from_json(json.dumps(document)))
    unfold(page)
    assert page.inner_text(".coin-say").startswith("This run did not record what it drew.")
    assert not page.is_visible(".coin-bar")


def test_inside_a_step_the_coin_stands_beside_the_tree_while_guesses_are_accepted(saved: Open) -> None:
    page = saved(viewport={"width": 1280, "height": 900})
    page.click(".inside-toggle")
    assert not page.is_visible(".inside .coin")
    page.click(".phase-list button:text('accept')")
    assert page.is_visible(".inside .coin .coin-say") and not page.is_visible(".inside .mask")
    page.click(".phase-list button:text('keep')")
    assert page.is_visible(".inside .mask") and not page.is_visible(".inside .coin")
    page.click(".phase-leave")
    unfold(page)


@pytest.mark.night
def test_the_keyboard_alone_walks_the_decisions_and_axe_finds_nothing(visit: Visitor) -> None:
    tab = visit(reduced_motion="reduce")
    tab.page.set_input_files("input[accept*=json]", str(RACE))
    tab.page.wait_for_selector(".coin-fold", state="visible")
    tab.page.focus(".coin-fold > summary")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".coin-say", state="visible")
    before = tab.text(".coin-say")
    on = tab.page.locator(".coin-bar button").last
    back = tab.page.locator(".coin-bar button").first
    (on if on.is_enabled() else back).focus()
    tab.page.keyboard.press("Enter")
    assert tab.text(".coin-say") != before
    assert_accessible(tab.page, ".coin-fold")
