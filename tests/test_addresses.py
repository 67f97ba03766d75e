"""Addresses of what is shown: they follow it and open it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.browser import FINISHED, SavedPages, Server, Visit, Visitor, visits
from support.visual_traces import synthetic_race

from visual.player.frames import recorded_frames

LESSONS = Path(__file__).parents[1] / "assets" / "lessons"
CLIPBOARD = ["clipboard-read", "clipboard-write"]
INSIDE = "document.querySelector('.phase-list [aria-current=step]')?.textContent"


@pytest.fixture
def opened(shipped_page: Server, browser: Any) -> Iterator[Visitor]:
    """Open the shipped page; at the end no tab may have asked another host or logged an error."""
    with visits(browser, shipped_page.address) as open_page:
        yield open_page


def shown(tab: Visit) -> dict[str, str]:
    """The names and values of a tab's address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(tab.page.url).query).items()}


def has(tab: Visit, **expected: str) -> None:
    """Wait until the address says exactly this."""
    for _ in range(1000):
        if shown(tab) == expected:
            return
        tab.page.wait_for_timeout(50)
    assert shown(tab) == expected


def test_an_address_follows_step_phase_view_and_presentation_and_opens_them_again(opened: Visitor) -> None:
    tab = opened("?example=2-story&step=3&phase=check&view=explain")
    tab.wait(f"{INSIDE} === 'check'")
    assert tab.step() == 3
    entries = tab.page.evaluate("history.length")
    tab.page.focus(".stage")
    tab.page.keyboard.press(".")
    has(tab, example="2-story", step="3", phase="accept", view="explain")
    tab.page.click("[data-present]")
    has(tab, example="2-story", step="3", phase="accept", view="explain", present="1")
    tab.page.reload()
    tab.page.wait_for_selector(".tree .main-svg")
    tab.wait(f"{INSIDE} === 'accept' && document.querySelector('#columns').classList.contains('present')")
    assert tab.step() == 3
    tab.page.keyboard.press("Escape")  # leaves the phases, as the stage has the focus
    tab.page.keyboard.press("Escape")  # leaves the presentation
    tab.page.click("[data-do=next]")
    has(tab, example="2-story", step="4", view="explain")
    assert tab.page.evaluate("history.length") == entries


@pytest.mark.night
def test_the_first_screen_has_the_plain_address_and_its_link_the_whole_one(opened: Visitor) -> None:
    tab = opened(permissions=CLIPBOARD)
    first = tab.step()
    tab.page.click("[data-do=next]")
    has(tab, example="1-describe", step=str(first + 1))
    tab.page.click("[data-do=previous]")
    has(tab)
    tab.page.click(".files summary")
    tab.page.click("[data-file=link]")
    has(tab, example="1-describe", step=str(first))
    assert tab.page.evaluate("navigator.clipboard.readText()") == tab.page.url


@pytest.mark.night
def test_a_lesson_opens_at_another_step_without_asking(opened: Visitor) -> None:
    tab = opened("?lesson=5&step=2")
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 2 ')")
    assert tab.page.locator(".sentence").is_visible()
    assert not tab.page.locator(".asking").count()
    has(tab, lesson="5", step="2")


@pytest.mark.night
def test_settings_that_differ_from_the_defaults_are_in_the_address(opened: Visitor) -> None:
    tab = opened("?set-rule=topk&set-depth=3&set-nodes=none")
    tab.wait("document.querySelector('.summary').textContent.includes('nodes')")
    assert "change the settings" in tab.page.text_content(".summary")
    tab.page.click(".settings-open")
    assert tab.page.input_value("#option-depth") == "3"
    tab.page.fill("#option-nodes", "7")
    for _ in range(1000):
        if shown(tab).get("set-nodes") == "7":
            break
        tab.page.wait_for_timeout(50)
    assert {"set-rule": "topk", "set-depth": "3", "set-nodes": "7"}.items() <= shown(tab).items()


@pytest.mark.night
def test_a_live_run_has_no_link(opened: Visitor) -> None:
    tab = opened()
    tab.run("What is in the link?")
    tab.wait(f"document.querySelector('.asked').textContent.includes('in the link') && {FINISHED}")
    tab.page.click(".files summary")
    assert tab.page.locator("[data-file=race]").is_enabled() and tab.page.locator("[data-file=link]").is_hidden()


@pytest.mark.night
def test_a_link_that_held_a_live_run_says_so_and_opens_nothing(opened: Visitor) -> None:
    tab = opened("?view=workbench#race=" + "A" * 40)
    assert tab.text(".link-notice").startswith("This link held a live run")
    assert "recorded run" in tab.text(".origin")
    tab.page.locator("button.example").first.click()
    tab.wait("document.querySelector('.link-notice').textContent === '' && !location.hash")


@pytest.mark.night
def test_presentation_is_turned_on_and_off_in_a_saved_page(saved_page: SavedPages) -> None:
    race = synthetic_race(1)
    tab = saved_page(recorded_frames(race["target-only"], race["speculative"]))
    tab.page.click("[data-present]")
    assert tab.page.locator("#columns.present").count() == 1
    tab.page.wait_for_url("**present=1**")
    step = tab.step()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Space")
    assert tab.step() == 2 != step, "without a lesson, Space is the next step"
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#columns.present").count() == 0
    has(tab, step="2")


@pytest.mark.night
def test_a_saved_page_opens_at_the_step_and_phase_of_its_address(saved_page: SavedPages) -> None:
    race = synthetic_race(1)
    tab = saved_page(recorded_frames(race["target-only"], race["speculative"]))
    tab.page.goto(f"{tab.page.url.partition('?')[0]}?step=2&phase=check&present=1&view=explain")
    tab.page.wait_for_selector(".phase-list [aria-current=step]")
    assert tab.step() == 2 and tab.page.evaluate(INSIDE) == "check"
    assert tab.page.locator("#columns.present").count() == 1
    tab.page.click(".phase-leave")
    tab.page.click("[data-do=next]")
    has(tab, step="3", present="1", view="explain")
