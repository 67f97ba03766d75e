"""The live page in a browser, over the toy pair: the tour, a run, a follow-up, links, Measure; what a visitor meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.browser import FINISHED, Visit, Visitor, assert_accessible
from support.shipped_races import ASSETS

from specllava.config import DecodingConfig
from specllava.pair import Pair

QUESTION = "How many objects are there?"
CONTROLS = (
    "[...document.querySelectorAll('button, input, textarea, summary, select')].filter((one) => one.offsetParent"
    " && one.getBoundingClientRect().width > 1 && !one.closest('[aria-hidden=true]')"
    " && !one.closest('details:not([open]) > .list')).length"
)
SEEN = """(() => {
  const [sizes, words] = [new Set(), []];
  let answer = ""; // its tokens may be pieces of words
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (texts.currentNode.data.trim() && getComputedStyle(one).fontSize !== "0px"
        && one.checkVisibility() && one.getClientRects().length
        && !one.closest(".spoken, .nodes, script, style, [aria-hidden=true].tab-container")) {
      sizes.add(getComputedStyle(one).fontSize);
      if (one.closest(".token")) answer += texts.currentNode.data;
      else words.push(texts.currentNode.data);
    }
  }
  return [[...sizes], [...words, answer].join(" ").split(/\\s+/).filter((word) => /\\w/.test(word)).length];
})()"""


def answered(tab: Visit) -> str:
    """The answer on the stage, without its marks."""
    return str(tab.page.evaluate("[...document.querySelectorAll('.answer .text')[0].querySelectorAll('.token')]"
                                 ".map((one) => one.textContent).join('')")).strip()  # fmt: skip


def ask(tab: Visit, question: str, button: str = "#run") -> None:
    """Ask, and wait until the answer is complete and has been played."""
    tab.page.evaluate("document.querySelector('.spoken').textContent = ''")
    tab.page.fill("#question textarea", question)
    tab.page.click(button)
    tab.wait(FINISHED)
    tab.wait("document.querySelector('#run')?.offsetParent")


def test_the_first_screen_is_calm(tab: Visit) -> None:
    """At most 28 controls, 190 words, 6 sizes of type, one screen."""
    tab.wait_say("one word per pass")
    assert tab.page.evaluate(CONTROLS) <= 28
    sizes, words = tab.page.evaluate(SEEN)
    assert words <= 190
    assert len(sizes) <= 6, sizes
    assert tab.page.evaluate("document.documentElement.scrollHeight") == 720
    assert_accessible(tab.page)


@pytest.mark.alone
@pytest.mark.night
def test_a_first_visit_has_a_picture_in_half_a_second_and_a_living_tree_in_three(visit: Visitor) -> None:
    """On a quiet machine, with nothing kept in the browser from before; from the moment that the address is opened."""
    tab = visit(has_touch=True)  # in a context of its own
    milliseconds = tab.page.evaluate("performance.now()")
    loaded = "performance.getEntriesByType('resource').find((one) => one.name.includes('poster'))?.responseEnd ?? 1e9"
    assert tab.page.evaluate(loaded) <= 500
    assert milliseconds <= 3000


def test_a_run_says_what_the_target_says_and_a_follow_up_goes_on(tab: Visit, pair: Pair) -> None:
    tab.page.click("#example-0")
    tab.wait("document.querySelector('.stage').dataset.mode === 'run'")
    tab.wait_say("The same")  # the recorded run is there before another is asked for
    ask(tab, QUESTION)
    picture = ASSETS / "examples" / "1-describe.png"
    alone = pair.generate(picture, QUESTION, DecodingConfig(drafter="none"))
    assert answered(tab) == alone.text.strip()
    passes, tokens = len(alone.steps), len(alone.token_ids)
    assert f"instead of {passes}. The same {tokens} tokens." in tab.say()
    assert tab.text(".spoken").startswith("Answer complete.") and alone.text.strip() in tab.text(".spoken")
    ask(tab, "What is on the left?", "#follow")
    assert QUESTION in tab.text(".answer") and "live" not in tab.page.url


def test_a_stopped_run_keeps_what_it_has(tab: Visit) -> None:
    tab.page.fill("#question textarea", "Describe this image in detail.")
    tab.page.click("#run")
    tab.wait("document.querySelector('#stop')?.offsetParent")
    tab.page.click("#stop")
    tab.wait("document.querySelector('#run')?.offsetParent")
    tab.wait("document.querySelector('.say h2').textContent.length > 0")


def test_a_paused_run_stays_where_it_is_until_its_end(visit: Visitor) -> None:
    tab = visit("", reduced_motion="no-preference")
    tab.page.fill("#question textarea", "Describe this image in detail.")
    tab.page.click("#run")
    tab.wait("document.querySelector('[data-act=play]').getAttribute('aria-label') === 'Pause'")
    tab.page.click("[data-act=play]")
    at = tab.text(".at").partition(" of ")[0]
    tab.wait("document.querySelector('.spoken').textContent.startsWith('Answer complete')")
    assert tab.text(".at").startswith(f"{at} of ")


def test_a_new_scene_waits_for_its_question_and_a_race_file_opens(tab: Visit, tmp_path: Path) -> None:
    tab.page.click("text=New scene")
    tab.wait_say("press Run")
    assert not tab.count(".token") and tab.page.get_attribute(".pic img", "src").startswith("data:image/")
    for key in ("Space", "End", "ArrowRight"):  # there is no step to go to
        tab.page.locator(".stage").press(key)
    tab.page.set_input_files("input[type=file]", str(ASSETS / "examples" / "3-count.json"))
    tab.wait_say("The same")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    tab.page.set_input_files("input[type=file]", str(bad))
    tab.wait("document.body.innerText.includes('is not a recorded race')")
    tab.page.click(".toast-close")
    marked = tmp_path / "marked.json"
    marked.write_text('{"<b>x</b>": 1}')  # a file's words are no markup
    tab.page.set_input_files("input[type=file]", str(marked))
    tab.wait("document.body.innerText.includes('<b>x</b>')")
    tab.page.click(".toast-close")


def test_every_click_on_a_picture_opens_its_run_and_its_guesses(visit: Visitor) -> None:
    """Whichever way the player was left by; the largest lesson's run is no request of the browser's."""
    tab = visit("")
    tab.page.click("#example-0")
    for _ in range(2):
        tab.page.click("[data-act=tour]")
        tab.wait_say("one word per pass")
    for at in (1, 0):
        tab.page.click(f"#example-{at}")
        tab.wait(f"location.search.startsWith('?example={at + 1}-')")
    tab.page.goto(tab.page.url.partition("?")[0] + "?race=coin&tab=measure")
    tab.wait("[...document.querySelectorAll('.measure h2')].some((one) => one.innerText === 'This run')")
    tab.wait("document.body.innerText.includes(' guesses')")


def test_measure_compares_and_opens_a_row_on_the_stage_which_is_saved(tab: Visit, tmp_path: Path) -> None:
    tab.page.fill("#question textarea", QUESTION)
    tab.page.click("#tabs button[role=tab] >> nth=1")
    tab.wait("location.search.includes('tab=measure')")
    tab.page.click("button:has-text('Compare')")
    tab.wait("document.querySelector('#compared').innerText.includes('sequoia')")
    tab.wait("document.querySelector('.verdict h2').innerText.includes('tokens a pass')")
    tab.wait("document.querySelectorAll('.measure .js-plotly-plot').length === 3")
    assert tab.page.evaluate("document.documentElement.scrollHeight") <= 3 * 720
    assert_accessible(tab.page)
    tab.page.locator("#compared").get_by_text("chain", exact=True).last.click()
    tab.wait("document.querySelector('#tabs button[role=tab]').getAttribute('aria-selected') === 'true'")
    tab.wait_say("instead of")
    tab.wait("!location.search.includes('measure')")
    for entry in ("page", "json", "csv"):
        tab.page.click(".save summary")
        with tab.page.expect_download() as waits:
            tab.page.click(f"[data-save={entry}]")
        waits.value.save_as(tmp_path / entry)
    assert json.loads((tmp_path / "json").read_text())["speculative"]["config"]["rule"] == "chain"
    assert (tmp_path / "csv").read_text().startswith("step,node,parent,")
    page = (tmp_path / "page").read_text()
    assert "Content-Security-Policy" in page and "Plotly" in page
    held = json.loads(page.split('id="frames">')[1].split("</script>")[0])
    asked = {stop["race"] for lesson in held["catalog"]["lessons"] for stop in lesson["stops"]}
    assert len(asked) > 5 and asked | {"1-describe"} == {*held["races"]}
    assert json.loads(held["frames"][0])["race"] is None


def test_links_lead_where_they_led_and_back_goes_back(visit: Visitor) -> None:
    tab = visit("?lesson=16")
    tab.wait("document.querySelector('.at').textContent.includes('does it pay?')")
    tab.page.goto(tab.page.url.partition("?")[0] + "?lesson=3")
    tab.wait_say("If it is wrong, does the answer go wrong?")
    tab.page.keyboard.press("Space")
    tab.wait_say("A wrong guess costs a little time, never a word.")
    tab.page.keyboard.press("PageDown")
    tab.wait("document.querySelector('.at').textContent.startsWith('lesson 4 of 10')")
    tab.page.go_back()
    tab.wait("document.querySelector('.at').textContent.startsWith('lesson 3 of 10')")
    tab.page.goto(tab.page.url.partition("?")[0])
    tab.wait_say("one word per pass")
    tab.page.click("#example-1")
    tab.wait("location.search.startsWith('?example=2-story')")
    tab.page.go_back()
    tab.wait_say("one word per pass")


def test_a_phone_sees_the_whole_stop_and_need_not_scroll_sideways_whatever_its_address(visit: Visitor) -> None:
    tab = visit("?example=%3Cimg%20src%3Dx%3E&lesson=x", viewport={"width": 375, "height": 812}, has_touch=True)
    tab.wait("document.querySelector('.stage').dataset.mode === 'tour'")
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 375
    box = tab.page.locator(".plot .main-svg").first.bounding_box()
    assert box["y"] + box["height"] <= 812 - 60
    small: list[Any] = tab.page.evaluate(
        "[...document.querySelectorAll('#ask button, .bar button')].filter((one) => one.offsetParent"
        " && one.offsetHeight < 32).map((one) => one.innerText)"
    )
    assert small == []
