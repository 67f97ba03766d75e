"""The three views of a run: the opening in six beats, Explain, Workbench; and a layout that stands still."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.amount import ALL, sample
from support.browser import FINISHED, PATIENCE, SavedPages, Server, Visit, assert_accessible, new_page
from support.visual_traces import synthetic_race

import app
from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace, StepTrace
from visual.player.frames import instructive_step, recorded_frames
from visual.player.recorded import load_recorded
from visual.player.static_files import static_text

BEFORE = {"elements": 357, "words": 327}  # of the first screen when everything was in one view, counted by COUNT
COUNT = """() => {
  const seen = (e) => {
    const box = e.getBoundingClientRect();
    const window_ = e.closest(".words, .scroller");
    const room = window_ && window_ !== e ? window_.getBoundingClientRect() : { top: 0, bottom: innerHeight };
    return e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && box.width > 0.5 && box.height > 0.5
      && box.bottom > Math.max(0, room.top + 4) && box.top < Math.min(innerHeight, room.bottom - 4);
  };
  const every = [...document.body.querySelectorAll("*")];
  const all = every.filter((e) => !e.closest(".offscreen, .skip, option") && seen(e));
  const drawn = (e) => e instanceof SVGElement || getComputedStyle(e).backgroundImage !== "none";
  const leaves = all.filter((e) => e.matches("button, input, select, textarea, img")
    || !e.closest("button") && !e.children.length && (e.textContent.trim() || drawn(e)));
  const texts = (e) => [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent);
  const own = (e) => getComputedStyle(e).fontSize === "0px" ? [] : texts(e);
  const words = all.flatMap((e) => e.matches("textarea") ? [e.value] : own(e)).join(" ").split(/\\s+/).filter(Boolean);
  return { elements: leaves.length, words: words.length, page: document.documentElement.scrollHeight };
}"""
SHIFTS = """() => {
  window.shifts = [];
  const named = ({ node, previousRect: was, currentRect: is }) =>
    [node?.parentElement?.className, node?.nodeName, was.x, was.y, was.height, is.x, is.y, is.height].join(" ");
  const moved = (e) => e.sources.some(({ node }) => !node?.closest?.(".track")); // the blocks of a growing clock do
  new PerformanceObserver((list) => window.shifts.push(...list.getEntries().filter(moved).map((e) =>
    [e.value, e.startTime, e.sources.map(named)])))
    .observe({ type: "layout-shift", buffered: false });
}"""
# Nodes of the tree that are seen in a beat, by id.
SEEN = """() => {
  const chart = document.querySelector(".tree");
  const seen = [];
  for (const { customdata = [], uid, name } of chart.data) {
    const points = chart.querySelectorAll(`.trace${uid} .point`);
    customdata.forEach((node, place) => {
      if (name !== "marked" && getComputedStyle(points[place]).opacity > 0.5) seen.push(node);
    });
  }
  return [...new Set(seen)].sort((a, b) => a - b);
}"""
TITLE = "document.querySelector('.opening-title').textContent"


@pytest.fixture(scope="module")
def opening(shipped_page: Server, browser: Any) -> Iterator[Any]:
    """The first visit of somebody who has never been here, at the plain address."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(shipped_page.address)
    page.wait_for_selector(".tree[data-phase=root] .main-svg")
    yield page
    context.close()


def told() -> tuple[DecodeTrace, StepTrace]:
    """The step that the opening tells."""
    trace = load_recorded(app.EXAMPLES)[0].speculative
    assert trace is not None
    return trace, trace.steps[instructive_step(trace)]


def text(page: Any, name: str) -> str:
    return str(page.inner_text(f".opening-{name}")).replace("\xa0", " ").strip()


# --- the opening ----------------------------------------------------------------------------------------------------


def test_the_first_screen_asks_one_question_and_shows_one_tree(opening: Any) -> None:
    assert text(opening, "question").endswith("without changing a word?")
    assert opening.locator(".opening-picture").is_visible() and opening.locator(".tree").is_visible()
    buttons = opening.locator("#columns button:visible:not(.skip)").all_inner_texts()
    assert buttons == ["Skip", "Back", "Next"], "the skip link is seen by its focus only"
    counted = opening.evaluate(COUNT)
    assert counted["elements"] < 40 and counted["words"] < 90 and counted["page"] <= 720


def test_each_beat_shows_and_says_what_the_step_holds(opening: Any) -> None:
    trace, step = told()
    tree, path = step.tree, step.verification.path
    depth = [len(tree.path(node)) - 1 for node in range(len(tree.tokens))]
    word = [trace.texts[token].strip() for token in tree.tokens]
    children = tree.children()
    won = next(node for node in path[1:] if node != max(children[tree.parents[node]], key=lambda n: tree.log_probs[n]))
    fork = tree.parents[won]
    lost = max(children[fork], key=lambda n: tree.log_probs[n])
    judged, upto = set(range(len(word))), {n for n in range(len(word)) if depth[n] <= depth[fork]}
    assert depth[fork] >= 2, "first the draft runs ahead, then it wavers"
    opening.keyboard.press("Home")  # no key of the opening
    assert opening.evaluate(SEEN) == [0] and text(opening, "say").endswith(f"{word[0]}.")
    opening.click("[data-opening=next]")
    assert set(opening.evaluate(SEEN)) == upto
    ahead = "".join(trace.texts[tree.tokens[node]] for node in tree.path(fork)[1:]).strip()
    assert f"or pieces of words: {ahead}" in text(opening, "say")
    opening.keyboard.press("ArrowRight")
    assert set(opening.evaluate(SEEN)) == judged
    odds = [round(100 * math.exp(tree.log_probs[node])) for node in (lost, won)]
    assert text(opening, "say").startswith(f"{word[lost]} ({odds[0]} %) or {word[won]} ({odds[1]} %)?")
    opening.keyboard.press(" ")
    assert f"all {len(word) - 1} guesses" in text(opening, "say")
    opening.keyboard.press("PageDown")
    assert trace.texts[step.target.choices[fork]].strip() == word[won], "the target's own choice there"
    assert text(opening, "say").endswith(f"After {word[fork]} that is {word[won]}, not {word[lost]}.")
    opening.keyboard.press("ArrowRight")
    emitted = "".join(trace.texts[token] for token in step.emitted)
    assert text(opening, "say").startswith(f"{len(path) - 1} guesses were the large model's own, and the pass wrote")
    assert f"one word more: {trace.texts[step.emitted[-1]].strip()}." in text(opening, "say")
    assert f"a single line would have followed {word[lost]} and brought {path.index(won)}." in text(opening, "say")
    assert f"{len(step.emitted)} words or pieces" in text(opening, "say") and text(opening, "answer").endswith(emitted)
    opening.keyboard.press("ArrowRight")
    assert text(opening, "title") == "Now you" and not opening.is_visible("[data-opening=next]")
    assert opening.locator(".opening-end button:visible").all_inner_texts() == ["Run", "Lessons"]
    for _ in range(8):
        opening.keyboard.press("ArrowLeft")
    assert text(opening, "title") == "One pass, one word" and opening.evaluate(SEEN) == [0]
    assert_accessible(opening)


@pytest.mark.night
def test_the_opening_is_skipped_remembered_and_comes_back(opening: Any) -> None:
    opening.keyboard.press("Escape")
    assert opening.is_visible("#ask") and opening.is_visible(".race") and not opening.is_visible(".opening")
    assert "view=explain" in opening.url and opening.get_attribute(".tree", "data-phase") is None
    opening.goto(opening.url.partition("?")[0])
    opening.wait_for_selector(".tree .main-svg .textpoint")
    assert opening.is_visible("#ask") and not opening.is_visible(".opening")
    opening.click("[data-opens-view=opening]")
    opening.wait_for_selector(".tree[data-phase=root]")
    assert opening.evaluate(SEEN) == [0] and not opening.is_visible("#ask")
    for _ in range(6):
        opening.keyboard.press("ArrowRight")
    opening.click("[data-opening=lessons]")
    opening.wait_for_selector("button.teach")
    opening.keyboard.press("Escape")
    opening.click("[data-opens-view=opening]")
    for _ in range(6):
        opening.keyboard.press("ArrowRight")
    opening.click("[data-opening=run]")
    opening.wait_for_function("document.querySelector('.origin').textContent.includes('live')")
    assert opening.is_visible("#run") and opening.is_visible(".race")


# --- Explain and Workbench ------------------------------------------------------------------------------------------


def test_explain_shows_three_fifths_of_the_elements_and_four_fifths_of_the_words_of_one_view(opening: Any) -> None:
    opening.goto(opening.url.partition("?")[0] + "?view=explain")
    opening.wait_for_selector(".tree .main-svg .textpoint")
    counted = opening.evaluate(COUNT)
    assert counted["elements"] <= 0.6 * BEFORE["elements"] and counted["words"] <= 0.82 * BEFORE["words"], counted
    assert counted["page"] <= 1.5 * 720


@pytest.mark.night
def test_a_run_is_carried_from_view_to_view(shipped_page: Server, browser: Any) -> None:
    tab = Visit(new_page(browser, {"width": 1280, "height": 720}))
    tab.page.goto(f"{shipped_page.address}?view=explain")
    tab.page.wait_for_selector(".tree .main-svg .textpoint")
    tab.run("What is on the left?", "1")
    tab.wait(FINISHED)
    seen = tab.text(".asked"), tab.text(".step-name")
    tab.page.click("[data-opens-view=workbench]")
    assert "view=workbench" in tab.page.url and (tab.text(".asked"), tab.text(".step-name")) == seen
    for card in (".charts", "#lab", ".timeline", "#settings-open, .settings"):
        assert tab.page.locator(card).first.is_visible(), card
    tab.wait("document.querySelector('.charts .main-svg').getBoundingClientRect().width > 200")
    tab.page.click("[data-opens-view=explain]")
    assert not tab.page.locator(".charts").is_visible() and tab.text(".asked") == seen[0]
    tab.close()


@pytest.mark.night
@pytest.mark.parametrize("view", ["explain", "workbench"])
def test_nothing_moves_while_a_run_comes_or_steps_are_walked(shipped_page: Server, browser: Any, view: str) -> None:
    tab = Visit(new_page(browser, {"width": 1280, "height": 720}))
    tab.page.goto(f"{shipped_page.address}?view={view}")
    tab.page.wait_for_selector(".tree .main-svg .textpoint")
    tab.page.wait_for_timeout(600)
    tab.page.evaluate(SHIFTS)
    tab.page.evaluate("document.querySelector('.stage').focus({ preventScroll: true })")
    button = "document.querySelector('[data-do=next]').getBoundingClientRect().top"
    place = tab.page.evaluate(button)
    for key in ["ArrowLeft"] * (9 if ALL else 4) + ["ArrowRight"] * (9 if ALL else 4):
        tab.page.evaluate("window.shifts.length = 0")
        tab.page.keyboard.press(key)
        tab.page.wait_for_timeout(60)
        assert tab.page.evaluate(button) == pytest.approx(place, abs=1)
        shifts = tab.page.evaluate("window.shifts")
        assert sum(value for value, *_ in shifts) < 0.02, json.dumps(shifts)
    tab.page.fill("#question textarea", "What is on the left?")
    tab.page.wait_for_timeout(300)
    tab.page.evaluate("window.shifts.length = 0")
    tab.run("What is on the left?", "0.2")
    tab.wait(FINISHED)
    tab.page.wait_for_timeout(600)
    shifts = tab.page.evaluate("window.shifts")
    assert sum(value for value, *_ in shifts) < 0.02, json.dumps([one for one in shifts if one[0] > 0.001])
    tab.close()


@pytest.mark.night
def test_a_phone_shows_the_question_in_a_line_then_sentence_and_tree(shipped_page: Server, browser: Any) -> None:
    tab = Visit(new_page(browser, {"width": 375, "height": 812}))
    tab.page.goto(f"{shipped_page.address}?view=explain")
    tab.page.wait_for_selector(".tree .main-svg .textpoint")
    top = "(selector) => document.querySelector(selector).getBoundingClientRect().top"
    tops = [tab.page.evaluate(top, selector) for selector in ("#ask", ".sentence", ".tree", ".lanes")]
    assert tops == sorted(tops) and tops[2] < 400 and tops[3] > 600
    assert tab.page.evaluate("document.querySelector('#ask').getBoundingClientRect().height") < 64
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    controls = tab.page.evaluate("document.querySelector('.controls').getBoundingClientRect().bottom")
    assert controls <= 813, "the controls are at hand without scrolling"
    tab.page.focus("#question textarea")
    assert tab.page.locator(".suggestions").is_visible()
    tab.close()


@pytest.mark.night
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_opening_of_any_step_claims_only_what_its_trace_holds(
    saved_page: SavedPages, temperature: float
) -> None:  # fmt: skip
    """Of synthetic races: trees that branch and chains, right and wrong guesses, with and without chance."""
    asked = wrong = 0
    for seed in (seeds := sample(range(12), 3)):
        config = DecodingConfig(rule=("entropy", "chain", "topk")[seed % 3], temperature=temperature)
        trace = synthetic_race(seed, config)["speculative"]
        tab = saved_page(recorded_frames(None, trace, show=seed % len(trace.steps)))
        step = trace.steps[seed % len(trace.steps)]
        tab.page.click("[data-opens-view=opening]")
        beats = []
        for _ in range(7):
            beats.append((text(tab.page, "title"), text(tab.page, "say")))
            tab.page.keyboard.press("ArrowRight")
        said = dict(beats)
        guesses, right = len(step.tree.tokens) - 1, len(step.verification.accepted)
        branches = any(len(children) > 1 for children in step.tree.children())
        assert ("The small model wavers, and branches" in said) == branches
        assert ("The small model is sure, and goes straight on" in said) == (not branches and guesses > 0)
        if not guesses:
            assert list(said)[:2] == ["One pass, one word", "Now you"]
            continue
        checked = said["One pass of the large model checks them all"]
        assert (f"all {guesses} guesses" if guesses > 1 else "the guess") in checked
        ends = {title: line for title, line in said.items() if title.startswith(("Equal guesses", "No guess"))}
        assert len(ends) == 1 and any("No guess" in title for title in ends) == (right == 0)
        (line,) = ends.values()
        wrong += right == 0
        assert f"That is {len(step.emitted)} word" in line
        assert ("coin" in line) == ("The large model's own odds appear at the guesses" in said) == (temperature > 0)
        path, ranks = step.verification.accepted, step.tree.sibling_ranks()
        others = [place for place, node in enumerate(path, 1) if ranks[node] > 0 and temperature == 0]
        brought = re.search("a single line would have followed .+ and brought ([0-9]+)", line)
        assert (brought and int(brought[1])) == (others[0] if others else None), (seed, line)
        asked += 1
    assert asked >= len(seeds) - 2 and wrong


@pytest.mark.night
@pytest.mark.parametrize(
    ("query", "view"),
    [("", "opening"), ("?lesson=2", "explain"), ("?lesson=2&view=workbench", "workbench")],
)
def test_a_first_visit_by_a_link_begins_at_what_it_names(
    query: str, view: str, browser: Any
) -> None:
    context = browser.new_context()
    page = context.new_page()
    script = static_text("view_choice.js")
    page.route("**/*", lambda route: route.fulfill(body=f"<script>{script}</script>", content_type="text/html"))
    page.goto(f"http://127.0.0.1:9/{query}")
    assert page.evaluate("document.documentElement.dataset.view") == view
    context.close()
