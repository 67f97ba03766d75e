"""Lessons in the browser: in order, linked and pointed at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import Server, Visit, new_page

from benchmarks.first_paint import shipped_state

LESSONS = shipped_state().lessons
PHASE = """(() => {
  const now = document.querySelector(".phase-list [aria-current=step]")?.textContent ?? "";
  return /[0-9]/.test(now) ? "guess" : now;
})()"""


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
        tab.wait_for_selector("#first-paint", state="detached")
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


@pytest.mark.parametrize("lesson", LESSONS[1::4], ids=lambda lesson: lesson.text.name)
def test_a_link_opens_a_lesson_at_its_step_and_phase(page: Any, lesson: Any) -> None:
    shows(page(f"?lesson={lesson.number}"), lesson)


def test_next_leads_through_all_lessons_and_previous_back(page: Any) -> None:
    tab = page("?lesson=1")
    assert not tab.page.locator("[data-lesson=previous]").is_visible()
    for lesson in LESSONS:
        shows(tab, lesson)
        if lesson.number < len(LESSONS):
            tab.page.click("[data-lesson=next]")
    tab.page.click("[data-lesson=previous]")
    tab.wait(f"document.querySelector('.lesson-number').textContent.startsWith('Lesson {len(LESSONS) - 1} ')")
