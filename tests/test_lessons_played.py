"""Every lesson from question to answer in the browser: what it points at is in sight, and nothing gives it away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.amount import sample
from support.browser import Server, Visit, new_page
from support.shipped_page import shipped_state
from support.static_site import file_server

from specllava.cli.main import main
from visual.player.explanations import step_sentence
from visual.player.lessons import Lesson
from visual.player.race_frames import race_frames
from visual.player.standalone import standalone_page

LESSONS = shipped_state().lessons
EACH_PLACE = list({lesson.text.place: lesson for lesson in LESSONS}.values())
PLACES = {  # what the answer points at
    "lanes": ".lanes", "timeline": ".timeline", "tree": ".scroller", "mask": ".mask", "cache": ".kv-cache",
    "coin": ".coin-panel", "verdict": ".verdict", "grounding": ".lanes",
}  # fmt: skip
ASKED = {**PLACES, "coin": ".scroller", "grounding": ".scroller"}  # what the question points at
ENOUGH = 100  # pixels of a place's height
IN_SIGHT = """(selector) => {
  const place = document.querySelector(selector);
  const box = place?.getBoundingClientRect();
  if (!box?.width || !place.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return "hidden";
  const [left, right] = [Math.max(box.left, 0), Math.min(box.right, innerWidth)];
  const shown = [];
  for (let y = Math.max(box.top, 0) + 3; y < Math.min(box.bottom, innerHeight); y += 6) {
    const top = document.elementFromPoint((left + right) / 2, y);
    if (place === top || place.contains(top)) shown.push(y);
  }
  return 6 * shown.length >= 0.75 * Math.min(ENOUGH, box.height) ? "" : `${6 * shown.length} of ${box.height} pixels`;
}""".replace("ENOUGH", str(ENOUGH))
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


class Played:
    """A tab in which a lesson is open."""

    def __init__(self, tab: Visit) -> None:
        self.tab = tab

    def until(self, expression: str, argument: Any = None) -> None:
        """Wait until an expression is empty; the edition's policy forbids what a browser that waits by itself does."""
        found = "never looked"
        for _ in range(1000):
            found = self.tab.page.evaluate(expression, argument)
            if not found:
                return
            self.tab.page.wait_for_timeout(50)
        raise AssertionError((argument, found))

    def opens(self, lesson: Lesson) -> None:
        shown = "(title) => document.querySelector('.lesson-title')?.textContent === title ? '' : 'not yet'"
        self.until(shown, lesson.text.title)
        self.until("() => document.querySelector('.tree').dataset.phase ? '' : 'no phase'")

    def asks(self, lesson: Lesson, room: bool) -> None:
        """Assert what is in sight, and what is not on the page, while the question is open."""
        self.until(IN_SIGHT, ".lesson-question")
        self.until(IN_SIGHT, "#picture img" if room else ".lesson-picture")
        self.until(IN_SIGHT, ASKED[lesson.text.place])
        if room:
            self.until(IN_SIGHT, ".verdict .number b")
        assert self.tab.page.evaluate("document.querySelector('.tree').dataset.phase") in ("guess", "check")
        text = self.tab.page.evaluate(VISIBLE_TEXT)
        trace = lesson.race.lead
        sentence = "".join(words for _, words in step_sentence(trace, trace.steps[lesson.text.step]))
        for told in (*re.split(r"(?<=[.:]) ", lesson.text.answer), *re.split(r"(?<=[.:]) ", sentence)):
            assert len(told) < 12 or told.strip() not in text, (lesson.text.name, told)
        for one in LESSONS:  # the edition lists all questions
            text = text.replace(one.text.question, "")
        told = re.search(VERDICTS, text)
        assert not told, (lesson.text.name, told.string[max(0, told.start() - 60) : told.end() + 40])

    def answers(self, lesson: Lesson, room: bool) -> None:
        """Ask for the answer, and assert that it and its place are shown."""
        self.tab.page.keyboard.press("Space") if room else self.tab.page.click("[data-lesson=answer]")
        assert self.tab.text(".lesson-answer") == lesson.text.answer
        self.tab.page.click("[data-lesson=place]")
        self.until(IN_SIGHT, PLACES[lesson.text.place])


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the static edition."""
    folder = tmp_path_factory.mktemp("host") / "edition"
    assert main(["site", "--output", str(folder)]) == 0
    with file_server(folder) as address:
        yield address


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[str], Visit]]:
    """Open an address in a tab, in which nothing may go wrong."""
    tabs: list[Visit] = []

    def open_page(address: str, width: int = 1280) -> Visit:
        tab = Visit(new_page(browser, {"width": width, "height": 720}, reduced_motion="reduce"))
        tabs.append(tab)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.goto(address)
        tab.page.wait_for_selector(".tree .main-svg")
        return tab

    yield open_page
    for tab in tabs:
        tab.page.close()
        assert not tab.errors


def play(tab: Visit, lessons: Sequence[Lesson], room: bool) -> None:
    played = Played(tab)
    for number, lesson in enumerate(lessons, start=1):
        played.opens(lesson)
        played.asks(lesson, room)
        played.answers(lesson, room)
        if number < len(lessons):
            tab.page.keyboard.press("Space") if room else tab.page.click("[data-lesson=next]")


@pytest.mark.parametrize("room", sample((False, True), 1))
def test_all_lessons_of_the_page_are_played(shipped_page: Server, opened: Any, room: bool) -> None:
    tab = opened(f"{shipped_page.address}?lesson=1&view=explain{'&present=1' if room else ''}")
    play(tab, LESSONS, room)
    assert not tab.page.locator("button.teach").first.is_visible()


@pytest.mark.parametrize("room", sample((True, False), 1))
def test_all_lessons_of_the_static_edition_are_played(edition: str, opened: Any, room: bool) -> None:
    play(opened(f"{edition}?lesson=1&view=explain{'&present=1' if room else ''}"), LESSONS, room)


@pytest.mark.parametrize("lesson", sample(EACH_PLACE, 3), ids=lambda lesson: lesson.text.place)
def test_a_lesson_of_each_place_is_played_in_a_saved_page(lesson: Lesson, opened: Any, saved_folder: Path) -> None:
    picture = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
    frames = race_frames(lesson.race, picture=picture, show=lesson.text.step, lesson=lesson.words)
    page = saved_folder / "lesson.html"
    page.write_text(standalone_page(frames), encoding="utf-8")
    tab = opened(f"{page.as_uri()}?view=explain")
    play(tab, [lesson], False)
    tab.page.goto(f"{page.as_uri()}?view=explain&present=1")
    tab.page.wait_for_selector(".tree .main-svg")
    play(tab, [lesson], True)
