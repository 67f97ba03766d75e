"""Files in a browser: links, what the Save menu gives, traces opened on the page, and a saved page with no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.browser import SavedPages, Visit, Visitor
from test_files import hostile_race

from specllava.race_file import race_json
from visual.player.frames import recorded_frames
from visual.player.standalone import halves


def saved(tab: Visit, kind: str, folder: Path) -> Path:
    """What the menu gives under this name."""
    if not tab.page.locator(".files[open]").count():
        tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click(f"[data-file={kind}]")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def shows_hostile_texts_as_text(tab: Visit) -> None:
    words = "document.querySelector('[data-lane=speculative] .words').textContent"
    shown = tab.page.evaluate(words)
    for text in ("<img src=x onerror", "${6*7}", "{{value}}", "</script><script>window.hacked=1", "<!--", "longlong"):
        assert text in shown
    assert tab.page.evaluate("window.hacked") is None
    assert tab.page.locator(".player img:not(.opening-picture, .lesson-picture)").count() == 0


@pytest.mark.night
def test_a_link_opens_an_example_at_a_step_and_the_menu_saves_what_is_shown(visit: Visitor, tmp_path: Path) -> None:
    tab = visit("?example=race-1&step=3", permissions=["clipboard-write", "clipboard-read"])
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 3 ')")
    before, behind = halves()
    page = saved(tab, "page", tmp_path).read_text(encoding="utf-8")
    assert page.startswith(before)
    assert page.endswith(behind)
    run, *_, end = (json.loads(frame) for frame in json.loads(page[len(before) : -len(behind)]))
    assert (run["source"], run["live"], end["kind"]) == ("saved run", False, "end")
    assert run["picture"].startswith("data:image/")
    assert run["picture"] == tab.page.get_attribute("#picture img", "src")
    tab.page.click("[data-do=next]")
    tab.page.click(".files summary")
    tab.page.click("[data-file=link]")
    tab.wait("document.querySelector('.menu-note').textContent.includes('clipboard')")
    assert tab.page.evaluate("navigator.clipboard.readText()").endswith("?example=race-1&step=4")


def test_a_trace_is_opened_as_data_and_a_refused_one_changes_nothing(visit: Visitor, tmp_path: Path) -> None:
    tab = visit("?example=nope")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('no example')")
    race, good, bad = hostile_race(), tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(race_json(race["target-only"], race["speculative"]), encoding="utf-8")
    bad.write_text('{"image": "x.png", "target_only": {}}')
    tab.page.set_input_files("input[accept*=json]", str(good))
    tab.wait("document.querySelector('.origin').textContent.includes('from good.json')")
    tab.wait("!document.querySelector('#notice .notice').textContent.trim()")
    assert tab.page.locator("#picture img").count() == 0
    tab.page.click("[data-do=last]")
    shows_hostile_texts_as_text(tab)
    tab.page.set_input_files("input[accept*=json]", str(bad))
    tab.wait("document.querySelector('#picture-notice').textContent.includes('bad.json is not a recorded race')")
    assert "from good.json" in tab.text(".origin")
    shows_hostile_texts_as_text(tab)


def test_a_saved_page_plays_with_no_server(saved_page: SavedPages, tmp_path: Path) -> None:
    race = hostile_race()
    frames = recorded_frames(race["target-only"], race["speculative"], "saved run")
    tab = saved_page(frames, viewport={"width": 375, "height": 800}, color_scheme="dark")
    page = tab.page
    assert "saved run" in tab.text(".origin")
    assert "without its picture" in tab.text("#picture")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    dark = "getComputedStyle(document.querySelector('.card')).backgroundColor.match(/\\d+/g)[0] < 80"
    assert page.evaluate(dark)
    page.click("[data-do=first]")
    page.click("[data-do=next]")
    assert tab.step() == 2
    page.click("[data-do=play]")
    for _ in range(200):  # the page's policy forbids what a waiting browser would do
        page.wait_for_timeout(50)
        if tab.step() > 2:
            break
    assert tab.step() > 2
    page.click("[data-do=last]")
    shows_hostile_texts_as_text(tab)
    read = json.loads(saved(tab, "race", tmp_path).read_text(encoding="utf-8"))
    assert read["speculative"]["texts"]["12"] == race["speculative"].texts[12]  # the trace itself stays as it was
    assert page.locator("[data-file=page]").is_hidden()
