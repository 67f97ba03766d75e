"""The shell around the player in a browser: settings, picture, question, notices, links, and a server that is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from support.browser import FINISHED, Visit, Visitor, assert_accessible

from visual.player import markup

SHOWN_OPTIONS = (
    "[...document.querySelectorAll('.drawer .option:not([hidden]) code')].map((code) => code.textContent)"
)
DRAWER = "document.querySelector('.drawer').open"


def opened(tab: Visit) -> None:
    tab.page.focus(".settings-open")
    tab.page.keyboard.press("Enter")
    tab.wait(DRAWER)


def told(tab: Visit, words: str) -> None:
    tab.wait(f"document.querySelector('.settings > .summary').textContent.includes({json.dumps(words)})")


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.night
@pytest.mark.parametrize("width", [375, 1280])
def test_the_drawer_takes_the_focus_keeps_it_and_gives_it_back(tab: Visit, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 700})
    opened(tab)
    inside = "document.querySelector('.drawer').contains(document.activeElement)"
    assert tab.page.evaluate(inside)
    box = "document.querySelector('.drawer').getBoundingClientRect()"
    tab.wait(f"{box}.right <= {width} + 0.5")  # It slides in.
    assert tab.page.evaluate(f"{box}.width") <= width
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    for close in ("Escape", ".drawer-close"):
        if not tab.page.evaluate(DRAWER):
            opened(tab)
        tab.page.keyboard.press(close) if close == "Escape" else tab.page.click(close)
        tab.wait(f"!{DRAWER} && document.activeElement.matches('.settings-open')")


@pytest.mark.night
def test_options_that_nothing_reads_are_not_shown(visit: Visitor) -> None:
    tab = visit()
    opened(tab)
    shown = tab.page.evaluate(SHOWN_OPTIONS)
    assert "entropy_threshold" in shown and not {"branching", "ngram", "top_p", "seed"} & set(shown)
    tab.page.click(".drawer input[value=fixed]")
    tab.wait(f"{SHOWN_OPTIONS}.includes('branching') && !{SHOWN_OPTIONS}.includes('entropy_threshold')")
    assert not tab.page.locator(".drawer input[value=drawn]").is_visible()
    tab.page.fill("#option-temperature", "0.8")
    tab.page.click(".drawer input[value=drawn]")
    told(tab, "drawn guesses")
    tab.page.click(".drawer input[value=none]")
    tab.wait(f"!{SHOWN_OPTIONS}.includes('depth') && {SHOWN_OPTIONS}.includes('seed')")
    told(tab, "target alone · temperature 0.8 · seed 0")


@pytest.mark.night
def test_a_preset_is_what_runs_and_what_the_run_says(visit: Visitor) -> None:
    tab = visit()
    tab.page.select_option(".speed", "1")
    opened(tab)
    tab.page.get_by_role("button", name="EAGLE-2").click()
    assert tab.page.get_attribute(".preset:has-text('EAGLE-2')", "aria-pressed") == "true"
    told(tab, "topk rule")
    summary = tab.text(".drawer .summary")
    tab.page.click(".drawer-run")
    tab.wait(FINISHED)
    assert tab.text(".this-run") == f"This run: {summary}."
    assert "10 nodes a level · 8 levels · 59 guesses a pass" in summary and "0.3 nats" not in summary


@pytest.mark.night
def test_a_number_may_be_typed_beyond_the_slider_and_not_beyond_its_bounds(visit: Visitor) -> None:
    tab = visit()
    opened(tab)
    slider = tab.page.locator(".option:has(#option-entropy_threshold) input[type=range]")
    assert slider.get_attribute("max") == "2.5"
    tab.page.fill("#option-entropy_threshold", "4.5")
    told(tab, "branches above 4.5 nats")
    assert slider.input_value() == "2.5"
    tab.page.fill("#option-entropy_threshold", "40")
    told(tab, "Please change the settings")
    row = ".option:has(#option-entropy_threshold)"
    assert tab.page.get_attribute("#option-entropy_threshold", "aria-invalid") == "true"
    assert "12" in tab.text(f"{row} .why") and tab.text(f"{row} .why")
    tab.page.click(".drawer-run")
    tab.wait(
        "document.querySelector('#notice .notice').textContent"
        ".includes('Please change the settings: entropy_threshold = 40')"
    )
    opened(tab)
    slider.focus()
    tab.page.keyboard.press("ArrowLeft")
    told(tab, "branches above 2.45 nats")
    assert tab.page.input_value("#option-entropy_threshold") == "2.45"


@pytest.mark.night
def test_axe_finds_no_serious_violation_in_the_open_drawer_and_menu(visit: Visitor) -> None:
    tab = visit(reduced_motion="reduce")
    tab.page.click(".learn-card button.label-wrap")
    opened(tab)
    assert_accessible(tab.page)


# --- picture and question -------------------------------------------------------------------------------------------


def test_a_run_of_an_uploaded_picture_says_what_the_toy_pair_knows(tab: Visit, tmp_path: Path) -> None:
    said = "The toy pair knows only its own cartoon scenes"
    assert said in tab.text(".sources-card")
    tab.run("What is there?")
    tab.wait(FINISHED)
    assert said.lower() not in tab.text(".origin").lower()
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    first = tab.page.get_attribute("#picture img", "src")
    tab.page.set_input_files("#upload input, input[accept*=image]", str(tmp_path / "red.png"))
    tab.wait(f"document.querySelector('#picture img').src !== {json.dumps(first)}")
    tab.run("What is the capital of France?")
    tab.wait(f"{FINISHED} && document.querySelector('.asked').textContent.includes('France')")
    assert said.lower() in tab.text(".origin").lower()


@pytest.mark.parametrize("width", [375, 1280])
def test_a_file_that_is_no_picture_is_refused_beside_upload_and_in_view(tab: Visit, width: int, tmp_path: Path) -> None:
    bad = tmp_path / "not-a-picture.png"
    bad.write_bytes(b"nothing to see")
    tab.page.set_viewport_size({"width": width, "height": 720})
    tab.page.set_input_files("#upload input, input[accept*=image]", str(bad))
    tab.wait("document.querySelector('#picture-notice').textContent.includes('cannot be used')")
    upload, notice = (tab.page.locator(place).bounding_box() for place in ("#upload", "#picture-notice"))
    assert upload and notice and 0 <= notice["y"] - upload["y"] < 120
    assert notice["y"] >= 0 and notice["y"] + notice["height"] <= 720


def test_run_waits_for_a_question(tab: Visit) -> None:
    tab.page.fill("#question textarea", "   ")
    tab.wait("document.querySelector('#run').disabled && document.querySelector('#stop').disabled")
    tab.page.get_by_role("button", name="Count").click()
    tab.wait("!document.querySelector('#run').disabled")
    assert tab.page.input_value("#question textarea") == "How many objects are there?"


def test_thumbnails_are_named_once(tab: Visit) -> None:
    for thumbnail in tab.page.locator("button.example").all():
        assert thumbnail.aria_snapshot() == f'- button "{thumbnail.inner_text()}"'


def test_where_motion_is_reduced_gradios_own_widgets_keep_still_too(tab: Visit) -> None:
    moving = """[...document.querySelectorAll('.gradio-container *')].filter((element) => {
      const { animationName, transitionDuration } = getComputedStyle(element);
      return animationName !== 'none' || transitionDuration !== '0s';
    }).length"""
    for motion in ("reduce", "no-preference"):
        tab.page.emulate_media(reduced_motion=motion)
        assert (tab.page.evaluate(moving) == 0) == (motion == "reduce")


def test_links_open_in_a_new_tab(tab: Visit) -> None:
    links = tab.page.locator("#links a, #foot a")
    for link in links.all():
        assert link.get_attribute("target") == "_blank" and link.get_attribute("rel") == "noopener"
    assert [link.inner_text() for link in tab.page.locator("#links a").all()] == list(markup.PAPERS)
    assert all(name.endswith(" paper") for name in markup.PAPERS)
    assert "Apache" in tab.text("#foot")


def test_code_and_documentation_are_linked_where_their_address_is_known() -> None:
    made = markup.links("https://huggingface.co/spaces/a/b/tree/main")
    assert 'href="https://huggingface.co/spaces/a/b/tree/main"' in made and 'main/docs"' in made
    assert "Code" not in markup.links()


@pytest.mark.night
def test_the_first_tab_stop_skips_to_the_player(visit: Visitor) -> None:
    tab = visit("?example=race-1&step=2")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the player"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.matches('.stage')")
    tab.page.wait_for_url("**step=2")
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 3
