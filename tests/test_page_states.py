"""States of the page that models bring about: still loading, not loaded, loaded without a draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.browser import VIEWPORT, Visit, new_page
from support.served_page import free_port
from support.visual_traces import SETTING, FakeBackend, synthetic_race, synthetic_recorded

from specllava.config import DecodingConfig
from specllava.trace import NO_DRAFT
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.race import speculation_off
from visual.page.serving import serve

Open = Callable[[AppState], Visit]


@pytest.fixture
def open_site(browser: Any) -> Iterator[Open]:
    """Serve a site, and visit it."""
    left: list[Callable[[], None]] = []

    def serve_and_visit(site: AppState) -> Visit:
        page = build_page(site)
        address = serve(page, "127.0.0.1", free_port(), site, block=False)
        tab = Visit(new_page(browser, VIEWPORT, locale="en-GB"))
        left.extend((tab.page.close, page.close))
        tab.page.goto(address)
        return tab

    yield serve_and_visit
    for close in left:
        close()


CHIP = "document.querySelector('.chip').dataset.state"


@pytest.mark.night
def test_models_that_are_loading_are_said_to_and_a_race_waits_for_them(open_site: Open, tmp_path: Path) -> None:
    loaded = Event()

    def backend() -> FakeBackend:
        assert loaded.wait(60)
        return FakeBackend(pace=0.004)

    tab = open_site(AppState(backend, synthetic_recorded(tmp_path)))
    tab.page.wait_for_selector(".tree .main-svg")  # a recorded race needs no models
    assert tab.page.evaluate(CHIP) == "loading" and tab.text(".chip") == "models are loading"
    tab.run("What is there?")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('Getting ready')")
    loaded.set()
    tab.wait(f"{CHIP} === 'ready'")
    assert "synthetic pair" in tab.text(".chip")
    tab.wait("document.querySelector('.origin').textContent.includes('live')")


def test_a_closed_tab_ends_its_run_and_frees_what_it_held(open_site: Open, tmp_path: Path) -> None:
    """A run of minutes, whose visitor leaves after its first steps: nobody waits for the rest of it."""
    backend = FakeBackend(pace=0.02)
    site = AppState(lambda: backend, synthetic_recorded(tmp_path))
    tab = open_site(site)
    tab.page.wait_for_selector(".tree .main-svg")
    tab.page.fill("#question textarea", "slowly: what is this?")
    tab.page.click("#run")
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 2 ')")
    assert backend.closed == [] and not site.requests.empty
    left = time.monotonic()
    tab.page.close()
    while not (backend.closed and site.requests.empty) and time.monotonic() - left < 20:
        time.sleep(0.05)
    assert backend.closed == ["slowly: what is this?"] and site.requests.empty
    assert time.monotonic() - left < 5


@pytest.mark.night
def test_models_that_cannot_be_loaded_leave_the_recorded_races(open_site: Open, tmp_path: Path) -> None:
    def backend() -> FakeBackend:
        raise OSError("a secret path")

    tab = open_site(AppState(backend, synthetic_recorded(tmp_path)))
    tab.page.wait_for_selector(".tree .main-svg")
    tab.wait(f"{CHIP} === 'failed'")
    assert "recorded races only" in tab.text(".chip")
    tab.run("What is there?")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('went wrong')")
    assert "secret" not in tab.page.content()


@pytest.mark.night
def test_a_lane_may_run_alone_and_the_page_says_why(open_site: Open, tmp_path: Path) -> None:
    """First without a draft, then from a file of one lane, which opens with the models as they are."""
    backend = FakeBackend(pace=0.004, info=replace(SETTING, draft=NO_DRAFT))
    tab = open_site(AppState(lambda: backend, synthetic_recorded(tmp_path)))
    tab.page.wait_for_selector(".tree .main-svg")
    tab.run("What is there?")
    tab.wait("document.querySelector('.origin').textContent.includes('live')")
    tab.wait("!document.querySelector('#run').disabled")
    assert "Speculation is off because the pair" in tab.text("[data-lane=speculative] .words")
    tab.page.click("[data-do=last]")
    assert len(tab.text("[data-lane=target-only] .words").split()) > 20
    assert tab.text("[data-total=same_note]") == "one lane, nothing to compare"
    tab.page.click("[data-do=first]")
    tab.page.click("[data-do=next]")
    assert tab.step() == 2 and "Nothing was drafted" in tab.text(".sentence")

    trace = synthetic_race(2)["speculative"]
    path = tmp_path / "lane.json"
    path.write_bytes(trace.to_json())
    with tab.page.expect_file_chooser() as chooser:
        tab.page.click("#open-race")
    chooser.value.set_files(str(path))
    tab.wait("document.querySelector('.origin').textContent.includes('lane.json')")
    assert "nothing to compare it with" in tab.text("[data-lane=target-only] .words")
    tab.page.click("[data-do=last]")
    assert tab.step() == len(trace.steps)
    assert tab.tree()


@pytest.mark.parametrize(("drafter", "draft", "off"), [
    ("model", "draft", None), ("prompt-lookup", NO_DRAFT, None), ("model", NO_DRAFT, "has no draft model"),
    ("none", "draft", "Settings say"),
])  # fmt: skip
def test_speculation_is_off_for_a_reason_or_on(drafter: Any, draft: str, off: str | None) -> None:
    said = speculation_off(replace(SETTING, draft=draft), DecodingConfig(drafter=drafter))
    assert said is None if off is None else said is not None and off in said
