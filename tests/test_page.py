"""The page in a browser: what a visitor sees and does, against a stand-in for the models.

``FakeBackend`` streams synthetic races, so these tests are about the page alone. A machine without Chromium skips
them and says so; in CI that is a failure.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.browser import DRAWN, FINISHED, HOSTILE, LAB_READY, Server, Visit, Visitor, new_page


def test_the_first_example_teaches_without_a_click(shared_tab: Visit) -> None:
    tab = shared_tab  # the first test of the file: nothing was clicked in it
    assert "recorded run" in tab.text(".origin")
    assert "identical" in tab.text(".same")
    assert "accepted" in tab.text(".sentence")
    assert {"marked", "accepted", "next"} <= {trace["name"] for trace in tab.tree()}
    assert tab.page.locator(".tree .traceaccepted .point").count() > 1
    assert tab.page.locator(".tree .shapelayer path").count() > 1
    tab.wait("document.querySelector('.chip').textContent.includes('synthetic pair')")


def test_no_level_of_headings_is_skipped(tab: Visit) -> None:
    tab.wait("document.querySelector('.chip').textContent.includes('synthetic pair')")
    levels = """[...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"""  # noqa: E501
    found = tab.page.evaluate(levels)
    assert found[0] == 1 and all(level <= before + 1 for before, level in pairwise(found)), found


def test_gradios_own_line_about_the_queue_is_neither_seen_nor_read_out(tab: Visit) -> None:
    lines = """[...document.querySelectorAll(".lab-said > .wrap, #player > .wrap")].map((one) => getComputedStyle(one).display)"""  # noqa: E501
    tab.wait(f"{lines}.length > 0")
    assert set(tab.page.evaluate(lines)) == {"none"}


def test_the_arrow_of_the_lessons_points_where_they_open(tab: Visit) -> None:
    arrow = "getComputedStyle(document.querySelector('.learn-card button.label-wrap'), '::after').content"
    icon = "getComputedStyle(document.querySelector('.learn-card button.label-wrap .icon')).display"
    assert tab.page.evaluate(arrow) == '"▾"' and tab.page.evaluate(icon) == "none"
    tab.page.click(".learn-card button.label-wrap")
    tab.wait(f"""{arrow} === '"▴"'""")


def test_a_race_runs_to_its_end_and_says_identical(tab: Visit) -> None:
    tab.run("What is on the left?")
    tab.wait(FINISHED)
    tab.page.click("[data-do=last]")
    lanes = [tab.text(f"[data-lane={lane}] .words").replace("■", "").split() for lane in ("target-only", "speculative")]
    assert lanes[0] == lanes[1]
    assert "What is on the left?" in tab.text(".asked")


def test_on_a_phone_the_tree_grows_downwards_and_is_seen_without_sideways_scrolling(visit: Visitor) -> None:
    tab = visit(viewport={"width": 375, "height": 900})
    seen = """(() => {
      const node = document.querySelector(".tree .tracemarked .point").getBoundingClientRect();
      const card = document.querySelector(".scroller").getBoundingClientRect();
      return node.left >= card.left && node.right <= card.right;
    })()"""
    wide = "document.querySelector('.scroller').scrollWidth > document.querySelector('.scroller').clientWidth"
    downwards = """(() => {
      const centre = (point) => { const { left, top, width, height } = point.getBoundingClientRect(); return [left + width / 2, top + height / 2]; };
      const path = [...document.querySelectorAll(".tree .traceaccepted .point")].map(centre);
      return path.every(([x, y], at) => !at || (Math.abs(x - path[at - 1][0]) < 1 && y > path[at - 1][1]));
    })()"""  # noqa: E501
    for _ in range(5):
        tab.wait(seen)
        assert not tab.page.evaluate(wide)
        assert tab.page.evaluate(downwards)
        before = tab.page.evaluate(DRAWN)
        tab.page.click("[data-do=next]")
        tab.wait(f"{DRAWN} !== {json.dumps(before)}")


def test_scrubbing_redraws_the_tree_without_asking_the_server(tab: Visit) -> None:
    begun = -1
    while begun != len(tab.calls):  # the page's own start-up requests pass
        begun = len(tab.calls)
        tab.page.wait_for_timeout(1000)
    before = tab.page.evaluate(DRAWN)
    tab.page.locator(".scrub").scroll_into_view_if_needed()
    box = tab.page.locator(".scrub").bounding_box()
    for share in (0.1, 0.25):
        tab.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    tab.wait(f"{DRAWN} !== {json.dumps(before)}")
    asked = [call for call in tab.calls[begun:] if not call.endswith("/gradio_api/app_id")]  # every ten seconds
    assert asked == []
    words = tab.page.locator("[data-lane=speculative] .word:not(.later)").count()
    assert 0 < words < tab.page.locator("[data-lane=speculative] .word").count()


def test_keys_step_through_the_race(tab: Visit) -> None:
    tab.page.focus(".stage")
    tab.page.keyboard.press("Home")
    assert tab.step() == 1
    for _ in range(3):
        tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 4
    tab.page.keyboard.press("ArrowLeft")
    assert tab.step() == 3
    word = tab.text(".node-word")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    assert tab.text(".node-word") != word or tab.text(".node-path")
    tab.page.keyboard.press("End")
    assert tab.page.locator(".word.later").count() == 0
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Space")
    assert tab.text(".play") == "Pause"
    tab.wait("!document.querySelector('.step-name').textContent.startsWith('Step 1 ')")


def test_a_word_and_a_block_lead_to_their_step(tab: Visit) -> None:
    tab.page.click("[data-do=last]")
    tab.page.click(".whole")
    tab.page.locator("[data-lane=speculative] .word[data-item='2']").first.click()
    tab.page.click(".whole")
    assert tab.step() == 2
    tab.page.locator(".track[data-lane=speculative] .lap[data-item='3']").click()
    assert tab.step() == 3
    tab.page.locator(".chosen .table summary").click()
    tab.page.wait_for_selector(".chosen .table tbody tr")
    rows = tab.page.locator(".chosen .table tbody tr").count()
    drawn = "document.querySelector('.tree').data.filter((t) => t.visible).flatMap((t) => t.customdata ?? [])"
    assert rows == len(tab.page.evaluate(drawn))


def test_errors_are_words_and_the_run_on_show_stays(tab: Visit) -> None:
    tab.run("fail now")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('Something went wrong')")
    assert "secret" not in tab.text("body")
    assert "recorded run" in tab.text(".origin")
    tab.wait("!document.querySelector('#run').disabled")


def test_words_of_the_model_never_become_markup(tab: Visit, server: Server) -> None:
    server.backend.texts.update(HOSTILE)
    try:
        tab.run("Words that bite")
        tab.wait(FINISHED)
        tab.page.click("[data-do=first]")
        for _ in range(4):
            tab.page.click("[data-do=next]")
        assert "<img src=x" in tab.text("[data-lane=speculative] .words")
        assert "${6*7}" in tab.text("[data-lane=speculative] .words")
        assert tab.page.evaluate("window.hacked") is None
        assert tab.page.locator(".player img:not(.opening-picture, .lesson-picture)").count() == 0
    finally:
        server.backend.texts.clear()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_it_fits_in_light_and_dark(tab: Visit, scheme: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colour is on its way to another
    tab.page.wait_for_selector("body.dark" if scheme == "dark" else "body:not(.dark)")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    brightness = tab.page.evaluate(
        "getComputedStyle(document.querySelector('.card')).backgroundColor.match(/\\d+/g)[0]"
    )
    assert (int(brightness) < 80) == (scheme == "dark")
    assert tab.page.locator("footer").count() == 0 or not tab.page.locator("footer").first.is_visible()
    tab.page.emulate_media(color_scheme="light", reduced_motion="no-preference")


def test_the_whole_run_answers_questions(tab: Visit) -> None:
    tab.wait("document.querySelector('.chart .main-svg') !== null")
    tabs = tab.page.get_by_role("tab")
    assert tabs.count() == 5 and all(name.endswith("?") for name in tabs.all_inner_texts())
    answers = set()
    for number in range(5):
        tabs.nth(number).click()
        answers.add(tab.text(".answer"))
    assert len(answers) == 5
    tab.page.keyboard.press("ArrowRight")
    assert tabs.first.get_attribute("aria-selected") == "true"
    tab.page.locator(".charts summary").click()
    tab.wait("document.querySelectorAll('.charts td').length > 5")  # the table is filled when it opens


def test_the_trace_on_show_can_be_saved(tab: Visit, tmp_path: Path) -> None:
    from visual.player.recorded import read_recorded

    tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click("[data-file=race]")
    saved = tmp_path / "race.json"
    download.value.save_as(saved)
    parts = json.loads(saved.read_text())
    (tmp_path / parts["image"]).write_bytes(b"")
    assert read_recorded(saved).speculative.prompt == parts["speculative"]["prompt"]


def test_an_experiment_runs_when_asked_and_answers_in_words_picture_and_table(tab: Visit) -> None:
    assert tab.page.locator(".lab-result:visible").count() == 0
    tab.page.click("#lab-image-ablation .lab-run")
    tab.wait("document.querySelectorAll('#lab-image-ablation .chart .main-svg').length >= 2")
    tab.wait(LAB_READY.format(name="image-ablation"))
    assert "tokens per target pass" in tab.text("#lab-image-ablation .answer")
    words = tab.page.locator("#lab-image-ablation .gloss-word").count()
    assert tab.page.locator("#lab-image-ablation .gloss-mark").count() == 3 * words > 30
    tab.page.locator("#lab-image-ablation summary").click()
    tab.wait(f"document.querySelectorAll('#lab-image-ablation tbody tr').length === {words}")
    tab.page.fill("#question textarea", "  ")
    tab.page.click("#lab-rules .lab-run")
    tab.wait("document.querySelector('#lab-rules .notice').textContent.includes('prompt is empty')")


FAILS = """
const Own = window.DecompressionStream;
window.DecompressionStream = class extends Own {
  constructor(kind) {
    if (window.failing-- > 0) throw new Error("it cannot be unpacked");
    super(kind);
  }
};
"""


@pytest.mark.night
def test_frames_that_fail_stop_none_that_come_behind_them(visit: Visitor) -> None:
    tab = visit(init_script=FAILS)
    tab.page.evaluate("window.failing = 1")
    tab.run("What is it?")
    tab.wait("window.failing <= 0 && !document.querySelector('#run').disabled")
    tab.run("And where?")
    tab.wait(f"document.querySelector('.asked').textContent === 'And where?' && {FINISHED}")
    assert [line.split(":")[0] for line in tab.errors] == ["frames were not shown"]
    tab.errors.clear()


@pytest.mark.night
def test_the_tree_is_drawn_once_the_library_can_be_had(server: Server, browser: Any) -> None:
    """A load that failed was kept, and no step was drawn until the page was loaded anew."""
    tab = Visit(new_page(browser, {"width": 1280, "height": 900}))
    refused: list[str] = []

    def refuse(route: Any) -> None:
        refused.append(route.request.url)
        route.abort()

    tab.page.route("**/plotly.min.js*", refuse)
    tab.page.goto(server.address)
    tab.wait("document.querySelector('.count').textContent.startsWith('step')")
    while not refused:
        tab.page.wait_for_timeout(50)
    tab.page.wait_for_timeout(500)
    assert not tab.page.locator(".tree .main-svg").count()
    tab.page.unroute("**/plotly.min.js*")
    tab.page.click("[data-do=previous]")
    tab.page.wait_for_selector(".tree .main-svg")
    tab.page.close()


# At every frame of the screen: a judged tree or its sentence, while not one block of the lane is past.
WATCH = """() => {
  window.tooEarly = 0;
  window.waited = 0;
  const look = () => {
    const live = document.querySelector(".origin").textContent.includes("live");
    const past = document.querySelector(".track[data-lane=speculative] .lap:not(.prefill):not(.later)");
    const shown = document.querySelector(".step-name").textContent !== "Step";
    const drawn = document.querySelector(".tree").style.visibility !== "hidden";
    if (live && !past) window[shown || drawn ? "tooEarly" : "waited"] += 1;
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.mark.night
def test_a_live_run_shows_a_step_no_sooner_than_its_clock(visit: Visitor) -> None:
    """On a slow machine the first tree and its verdict stood there while both lanes were empty."""
    tab = visit()
    tab.page.evaluate(WATCH)
    tab.run("What is there?", speed="0.02")
    tab.wait("document.querySelector('.origin').textContent.includes('live') && window.waited > 0")
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 1')")
    assert tab.page.evaluate("window.tooEarly") == 0
    assert tab.page.evaluate("document.querySelector('.tree').style.visibility") == ""
    tab.page.click("[data-do=last]")
    tab.wait(FINISHED)
    assert tab.page.evaluate("window.tooEarly") == 0
