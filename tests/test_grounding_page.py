"""Marks of words that needed the picture, and the part of it that lights up, in the page and in a saved one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.browser import FINISHED, SavedPages, Server, Visit, assert_accessible, visits
from support.lab_traces import synthetic_grounding
from support.visual_traces import retexted, synthetic_race

from specllava.config import DecodingConfig
from visual.player.encoding import data_address
from visual.player.frames import recorded_frames
from visual.player.grounding import grounding_of
from visual.player.recorded import read_recorded

ASSETS = Path(__file__).resolve().parent.parent / "assets"
RACE = read_recorded(ASSETS / "examples" / "1-describe.json")
MARKED = """() => [...document.querySelectorAll('article[data-lane]')].map((lane) =>
  [...lane.querySelectorAll('.word')].flatMap((word, at) => (word.matches('.grounded') ? [at] : [])))"""
POINT = """([lane, at]) => {
  const word = document.querySelectorAll(`article[data-lane="${lane}"] .word`)[at];
  word.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
}"""
LIT = """() => [...document.querySelectorAll('.grounding-map i')]
  .map((tile) => Number(tile.style.getPropertyValue('--lost')))"""
TEXTS = """() => [...document.querySelectorAll('article[data-lane]')]
  .map((lane) => [...lane.querySelectorAll('.word.grounded')].map(({ textContent }) => textContent))"""
TOGGLE = ".grounding-toggle"


def key(tab: Visit) -> str:
    return tab.text(".grounding-key")


def marks_the_recorded_words(tab: Visit) -> None:
    """Assert marks, sentences and lit tiles against the race file."""
    view = grounding_of(RACE.lead)
    places = [word["at"] for word in view["words"]]
    tab.page.click(TOGGLE)
    assert tab.page.evaluate(MARKED) == [places, places]
    assert key(tab).startswith(f"{len(places)} of {len(RACE.lead.token_ids)} tokens needed the picture: ")
    found = RACE.lead.grounding
    for lane in ("target-only", "speculative"):
        for word in view["words"]:
            tab.page.evaluate(POINT, [lane, word["at"]])
            text = RACE.lead.texts[RACE.lead.token_ids[word["at"]]].strip()
            assert key(tab).startswith(f"“{text}”: {100 * found.probs[word['at']]:.0f} % likely for the large model")
            most = max(word["lost"])
            lit = tab.page.evaluate(LIT)
            assert lit == ([pytest.approx(lost / most, abs=0.006) for lost in word["lost"]] if most >= 10 else [])
            assert ("No single part" in key(tab)) == (most < 10)
    tab.page.click(TOGGLE)
    assert tab.page.evaluate(MARKED) == [[], []] and not tab.page.evaluate(LIT)
    assert not tab.page.locator(".grounding-key").is_visible()


@pytest.mark.night
def test_a_recorded_example_has_its_marks_in_both_views(shipped_page: Server, browser) -> None:
    with visits(browser, shipped_page.address) as open_page:
        for view in ("explain", "workbench"):
            tab = open_page(f"?example=1-describe&view={view}")
            tab.wait("!document.querySelector('.grounding-toggle').hidden")
            marks_the_recorded_words(tab)
        tab.page.click(TOGGLE)
        assert_accessible(tab.page, ".race")
        box = tab.page.locator("#picture img").bounding_box()
        tab.page.evaluate(POINT, ["speculative", next(at for at in tab.page.evaluate(MARKED)[1] if at > 60)])
        lit = tab.page.locator(".grounding-map").bounding_box()
        assert lit is not None and all(abs(lit[side] - box[side]) < 1 for side in ("x", "y", "width", "height"))


@pytest.mark.night
def test_a_saved_page_has_them_too(saved_page: SavedPages) -> None:
    address = data_address(Image.open(RACE.image))
    tab = saved_page(recorded_frames(RACE.target_only, RACE.speculative, "saved run", address))
    marks_the_recorded_words(tab)


def test_lanes_that_say_other_words_are_marked_as_far_as_they_agree(saved_page: SavedPages) -> None:
    lanes = synthetic_race(3)
    alone, together = lanes["target-only"], replace(lanes["speculative"], grounding=None)
    other = retexted(alone, {alone.token_ids[4]: " other"})
    probs = tuple(1.0 for _ in together.token_ids)
    found = replace(
        RACE.lead.grounding, probs=probs, blank_probs=(0.1,) * len(probs), blank_choices=together.token_ids, grid=0,
        window=0, occluded=(),
    )  # fmt: skip
    tab = saved_page(recorded_frames(other, replace(together, grounding=found), "saved run"))
    tab.page.click(TOGGLE)
    words = ["■" if token in together.eos_token_ids else together.texts[token].lstrip() for token in together.token_ids]
    first = alone.token_ids.index(alone.token_ids[4])
    assert tab.page.evaluate(TEXTS) == [words[:first], words]


@pytest.fixture(scope="module")
def explained(server: Server, browser: Any) -> Iterator[Visit]:
    """One tab for runs of one's own; each begins anew."""
    with visits(browser, server.address) as open_page:
        yield open_page("?example=race-0&view=explain")


def run(tab: Visit, question: str) -> None:
    tab.run(question)
    tab.wait(f"document.querySelector('.asked').textContent === {question!r} && {FINISHED}")


@pytest.mark.night
def test_a_race_of_ones_own_begins_without_marks(explained: Visit) -> None:
    run(explained, "Whose is it?")
    assert explained.page.evaluate(MARKED) == [[], []] and explained.page.locator(TOGGLE).is_visible()


def test_ones_own_run_is_measured_at_a_click(explained: Visit) -> None:
    tab = explained
    run(tab, "What is this?")
    tab.page.click(TOGGLE)
    tab.wait("document.querySelectorAll('.word.grounded').length > 0")
    *_, trace = synthetic_grounding(DecodingConfig(), seed=sum(map(ord, "What is this?")))
    assert tab.page.evaluate(MARKED) == 2 * [[word["at"] for word in grounding_of(trace)["words"]]]
    tab.page.fill("#question textarea", "Another one?")
    tab.page.click(TOGGLE)  # known already, and only hidden
    assert tab.page.evaluate(MARKED) == [[], []]


def test_what_was_measured_of_another_answer_marks_nothing_and_says_so(explained: Visit) -> None:
    tab = explained
    run(tab, "What is that?")
    other = {"ids": [1, 2, 3], "factor": 10, "words": [{"at": 0, "seen": 1, "blank": 0, "instead": None, "lost": []}]}
    tab.page.evaluate("(detail) => document.dispatchEvent(new CustomEvent('grounded', { detail }))", other)
    assert "another answer" in key(tab) and tab.page.evaluate(MARKED) == [[], []]


def test_a_refused_measurement_is_told_beside_the_words(explained: Visit) -> None:
    tab = explained
    run(tab, "What are these?")
    tab.page.fill("#question textarea", "fail")
    tab.page.click(TOGGLE)
    tab.wait("document.querySelector('.grounding-key').textContent.includes('went wrong')")
