"""Lessons in the browser: in order, linked and pointed at; nothing on the page gives an answer away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.amount import sample
from support.browser import Server, Visit, new_page
from support.shipped_page import shipped_state

from visual.player.explanations import step_sentence

LESSONS = shipped_state().lessons
PHASE = """(() => {
  const now = document.querySelector(".phase-list [aria-current=step]")?.textContent ?? "";
  return /[0-9]/.test(now) ? "guess" : now;
})()"""

VISIBLE_TEXT = """() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = [];
  while (walk.nextNode()) {
    const { parentElement: at, data } = walk.currentNode;
    if (data.trim() && at.checkVisibility({ visibilityProperty: true, opacityProperty: true })) seen.push(data);
  }
  return seen.join(" ").replace(/\\s+/g, " ");
}"""
VERDICTS = r"\d+ accepted|stay in the KV cache|the target wanted|was right|refused|never reached"


@pytest.fixture
def page(shipped_page: Server, browser: Any) -> Iterator[Any]:
    """A function that opens the shipped page at a query; no tab may log an error."""
    opened, errors = [], []

    def open_page(query: str, width: int = 1280) -> Visit:
        tab = new_page(browser, {"width": width, "height": 720})
        opened.append(tab)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(shipped_page.address + query)
        tab.wait_for_selector(".tree .main-svg")
        tab.wait_for_selector(".lesson:not([hidden])")
        return Visit(tab)

    yield open_page
    for tab in opened:
        tab.close()
    assert not errors


def shows(tab: Visit, lesson: Any) -> None:
    """Assert that a lesson is open at its step and phase, with its question and, when asked for, its answer."""
    tab.wait(f"document.querySelector('.lesson-number').textContent.startsWith('Lesson {lesson.number} ')")
    assert tab.text(".lesson-number").lower() == f"lesson {lesson.number} of {len(LESSONS)}"
    tab.wait(f"document.querySelector('.step-name').textContent.startsWith('Step {lesson.text.step + 1} ')")
    assert tab.text(".lesson-question") == lesson.text.question and not tab.text(".lesson-answer")
    tab.page.click("[data-lesson=answer]")
    assert tab.text(".lesson-answer") == lesson.text.answer
    if lesson.text.phase:
        tab.wait(f"{PHASE} === '{lesson.text.phase}'")
    tab.page.click("[data-lesson=place]")
    tab.page.wait_for_selector(".pointed-at")


@pytest.mark.night
@pytest.mark.parametrize("lesson", sample(LESSONS[1::4], 2), ids=lambda lesson: lesson.text.name)
def test_a_link_opens_a_lesson_at_its_step_and_phase(page: Any, lesson: Any) -> None:
    shows(page(f"?lesson={lesson.number}"), lesson)


def test_a_lesson_is_played_and_nothing_gives_its_answer_away(page: Any) -> None:
    lesson = next(lesson for lesson in LESSONS if lesson.text.place == "tree")
    tab = page(f"?lesson={lesson.number}&view=explain")
    tab.wait("document.querySelector('.tree').dataset.phase")
    assert tab.page.evaluate("document.querySelector('.tree').dataset.phase") in ("guess", "check")
    text, trace = tab.page.evaluate(VISIBLE_TEXT), lesson.race.lead
    assert lesson.text.question in text
    sentence = "".join(words for _, words in step_sentence(trace, trace.steps[lesson.text.step]))
    for told in (*re.split(r"(?<=[.:]) ", lesson.text.answer), *re.split(r"(?<=[.:]) ", sentence)):
        assert len(told) < 12 or told.strip() not in text, told
    assert not re.search(VERDICTS, text.replace(lesson.text.question, ""))
    tab.page.click("[data-lesson=answer]")
    assert tab.text(".lesson-answer") == lesson.text.answer
    tab.page.click("[data-lesson=place]")
    assert tab.page.locator(".pointed-at").is_visible()


@pytest.mark.night
def test_previous_leads_back(page: Any) -> None:
    tab = page("?lesson=2")
    tab.page.click("[data-lesson=previous]")
    tab.wait("document.querySelector('.lesson-number').textContent.startsWith('Lesson 1 ')")
    assert not tab.page.locator("[data-lesson=previous]").is_visible()


@pytest.mark.night
def test_before_a_room_space_is_the_answer_then_the_next_lesson_and_full_stop_the_phases(page: Any) -> None:
    tab = page("?lesson=2&view=explain")
    tab.page.click("[data-present]")
    tab.page.wait_for_selector("#columns.present")
    assert not tab.page.locator(".question-card").is_visible() and tab.page.locator("#picture img").is_visible()
    tab.page.keyboard.press("Space")
    assert tab.text(".lesson-answer") == LESSONS[1].text.answer and not tab.page.evaluate(PHASE)
    tab.page.keyboard.press(".")
    assert tab.page.evaluate(PHASE) == "root"
    tab.page.keyboard.press("Space")
    tab.wait("document.querySelector('.lesson-number').textContent.startsWith('Lesson 3 ')")
    assert not tab.page.locator(".phases").is_visible() and not tab.text(".lesson-answer")
    size = float(tab.page.evaluate("parseFloat(getComputedStyle(document.querySelector('.lesson-question')).fontSize)"))
    assert size >= 24
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("#columns:not(.present)")
    assert tab.page.locator(".question-card").is_visible()


@pytest.mark.night
def test_presented_coins_keep_the_word_that_was_drawn_in_its_row(page: Any) -> None:
    tab = page("?lesson=8&view=explain&present=1")
    tab.page.keyboard.press("Space")
    tab.page.wait_for_selector(".coin-panel .coin-word")
    assert tab.page.locator(".coin-word.chosen").count() and tab.page.locator(".coin-word.chosen").first.is_visible()


@pytest.mark.night
def test_the_menu_of_lessons_closes_on_escape_a_click_elsewhere_and_a_choice(page: Any) -> None:
    tab = page("?lesson=1&view=explain")
    opened = tab.page.locator("button.teach").first
    closed = "!document.querySelector('.learn-card button.label-wrap.open')"
    top = tab.page.evaluate("document.querySelector('.stage').getBoundingClientRect().top + scrollY")
    keys, click = tab.page.keyboard, tab.page.click
    for close in (lambda: keys.press("Escape"), lambda: click(".lesson-question"), opened.click):
        tab.page.click(".learn-card button.label-wrap")
        opened.wait_for()
        assert tab.page.evaluate("document.querySelector('.stage').getBoundingClientRect().top + scrollY") == top
        low, save = (tab.page.locator(one).bounding_box() for one in (".learn-card > div:last-child", ".files summary"))
        assert low["y"] + low["height"] <= save["y"] or low["x"] + low["width"] <= save["x"]
        close()
        tab.wait(closed)


@pytest.mark.night
def test_on_a_phone_the_mask_unfolds_when_it_is_pointed_at(page: Any) -> None:
    tab = page("?lesson=6&view=explain", width=375)
    tab.page.click("[data-lesson=answer]")
    tab.page.evaluate("document.querySelector('.mask-fold').open = false")
    tab.page.click("[data-lesson=place]")
    assert tab.page.locator(".mask-fold > svg").is_visible()
