"""Going through the phases of a step, by keys, by the clock and out again; how it moves, and how long a phase takes."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest
from support.amount import sample
from support.browser import SavedPages, Visitor, assert_accessible
from support.inside_step import BUTTONS, CURRENT, RACES, SEEN, WAITING, enter, opened, walk
from support.visual_traces import synthetic_race, synthetic_steps, vocabulary

from specllava.config import DecodingConfig
from specllava.tree import Pruned
from visual.player.recorded import Recorded

# Every element of the drawing with all its attributes.
ATTRIBUTES = """() => [...document.querySelectorAll(".tree, .tree *")].map(
  ({ tagName, attributes }) => tagName + [...attributes].map(({ name, value }) => `${name}=${value}`).sort().join())"""
KEYS = {"full stop": (".", ","), "shift and arrows": ("Shift+ArrowRight", "Shift+ArrowLeft")}
# Milliseconds of each phase of the step on show, in the order of the bar, layout included; the first is not counted.
TIMES = """(rounds) => {
  const times = [...document.querySelectorAll(".phase-list button")].map(() => []);
  for (let round = 0; round <= rounds; round++) {
    [...document.querySelectorAll(".phase-list button")].forEach((button, place) => {
      const before = performance.now();
      button.click();
      document.querySelector(".ph-layer, .tree").getBoundingClientRect();
      document.body.getBoundingClientRect();
      if (round) times[place].push(performance.now() - before);
    });
  }
  return times;
}"""


def largest_race() -> Recorded:
    """A race of one step: a tree as large as the options allow, and as many pruned guesses."""
    config = DecodingConfig(depth=12, nodes=256, width=64)
    (step,) = synthetic_steps(random.Random(3), config, 1, least=257)
    tokens = list(vocabulary())
    parents = [parent for parent in range(len(step.tree)) if step.tree.depths()[parent] < 12]
    guesses = (Pruned(parents[i % len(parents)], tokens[i % len(tokens)], math.log(0.01)) for i in range(256))
    lanes = synthetic_race(1, config)
    lead = replace(lanes["speculative"], steps=(replace(step, pruned=tuple(guesses)),))
    return Recorded("made", None, lanes["target-only"], lead)


@pytest.mark.parametrize(("forward", "back"), sample(tuple(KEYS.values()), 1))
def test_the_keyboard_alone_goes_through_phases_and_steps(forward: str, back: str, visit: Visitor) -> None:
    tab = visit(reduced_motion="reduce")
    tab.page.focus(".stage")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press(forward)
    tab.wait("document.querySelector('.tree').dataset.phase === 'root'")
    names = tab.page.evaluate(BUTTONS)
    for name in names[1:]:
        tab.page.keyboard.press(forward)
        assert tab.page.evaluate(CURRENT) == name
    assert tab.step() == 1
    tab.page.keyboard.press(forward)
    assert (tab.step(), tab.page.evaluate(CURRENT)) == (2, "root")
    tab.page.keyboard.press(back)
    assert (tab.step(), tab.page.evaluate(CURRENT)) == (1, "keep")
    tab.page.keyboard.press("ArrowRight")
    assert (tab.step(), tab.page.evaluate(CURRENT)) == (2, "root")
    word, said = tab.text(".node-word"), tab.text(".mask-said")
    tab.page.keyboard.press(forward)
    for _ in range(3):
        tab.page.keyboard.press("ArrowDown")
    assert tab.text(".node-word") != word or tab.text(".mask-said") != said
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator(".phases").is_visible()
    assert tab.page.evaluate("document.activeElement.className") == "inside-toggle"
    tab.page.keyboard.press("Enter")
    assert tab.page.locator(".phases").is_visible()
    label = tab.page.get_attribute(".stage", "aria-label")
    assert "Full stop and comma" in label and "Escape" in label


@pytest.mark.night
def test_slow_play_goes_through_phases_and_a_pause_keeps_its_phase(saved_page: SavedPages) -> None:
    tab = opened(saved_page, RACES["2-story"], reduced_motion="no-preference", **WAITING)
    tab.page.select_option(".speed", "0.05")
    enter(tab)
    tab.page.click("[data-do=play]")
    tab.wait("document.querySelector('.tree').dataset.phase === 'guess'")
    tab.page.click("[data-do=play]")
    kept = tab.page.evaluate(CURRENT)
    time = tab.page.get_attribute(".scrub", "aria-valuetext")
    tab.page.wait_for_timeout(1500)
    assert tab.page.evaluate(CURRENT) == kept
    assert (tab.page.get_attribute(".scrub", "aria-valuetext"), tab.text(".play")) == (time, "Play")
    tab.page.locator(".phase-list button", has_text="keep").click()
    tab.page.click("[data-do=play]")
    tab.wait("document.querySelector('.step-name').textContent.startsWith('Step 2 ')")
    tab.wait("document.querySelector('.tree').dataset.phase === 'guess'")
    tab.page.select_option(".speed", "0.2")
    tab.wait("document.querySelector('.play').textContent.trim() === 'Play'")
    assert tab.page.evaluate(CURRENT) == "accept", "above a twentieth of the speed whole steps are played"


@pytest.mark.night
def test_play_goes_through_whole_steps_while_no_step_is_open(saved_page: SavedPages) -> None:
    tab = opened(saved_page, RACES["2-story"], reduced_motion="no-preference", **WAITING)
    tab.page.select_option(".speed", "0.05")
    tab.page.click("[data-do=first]")
    tab.page.click("[data-do=play]")
    tab.wait("Number(document.querySelector('.step-name').textContent.split(' ')[1]) >= 3")
    assert tab.page.evaluate("document.querySelector('.tree').dataset.phase") is None


@pytest.mark.night
def test_leaving_restores_every_attribute_of_the_drawing(saved_page: SavedPages) -> None:
    """The drawing alone: the player draws the tree anew as well, since its card is wider then."""
    tab = opened(saved_page, RACES["1-describe"], show=5, **WAITING)
    tab.wait("document.querySelectorAll('.tree .point').length > 5")
    different = tab.page.evaluate(
        """async (attributes) => {
          const module = async (name) => import(`data:text/javascript;charset=utf-8,${encodeURIComponent(
            document.querySelector(`[data-module="${name}.js"]`).textContent)}`);
          const { readStep, phasesOf } = await module("step_phases");
          const { createDrawing } = await module("phase_drawing");
          const { unpacked } = await module("files");
          const all = JSON.parse(document.getElementById("frames").textContent).map((text) => JSON.parse(text));
          const steps = all.filter(({ picture, kind }) => picture && kind === "step");
          const frame = { ...steps[5], ...JSON.parse(await unpacked(steps[5].picture)) };
          const step = readStep(frame, { threshold: 0.3 });
          const list = phasesOf(step);
          const drawing = createDrawing(document.querySelector(".tree"), await module("phase_words"));
          const read = eval(attributes);
          const before = read();
          let changed = 0;
          for (const order of [list, [...list].reverse(), list.slice(3, 5), list.slice(-1)]) {
            for (const phase of order) {
              drawing.show(step, phase);
              if (phase.kind !== "check") drawing.forget();
              changed += read().join() !== before.join();
            }
            drawing.clear();
            const after = read();
            const odd = after.findIndex((text, place) => text !== before[place]);
            if (odd >= 0 || after.length !== before.length) return [before[odd], after[odd]];
          }
          return changed ? [] : ["no phase changed anything"];
        }""",
        ATTRIBUTES,
    )
    assert different == []
    before = tab.page.evaluate(SEEN)
    enter(tab, 5)
    walk(tab)
    tab.page.click(".phase-leave")
    tab.wait("document.querySelectorAll('.tree .point').length > 5 && !document.querySelector('.tree').dataset.phase")
    after = tab.page.evaluate(SEEN)
    assert (after["nodes"], after["shapes"], after["strokes"]) == (before["nodes"], before["shapes"], before["strokes"])
    left = ".ph-layer, .tree [class*='ph-'], .phases:not([hidden]), .inside:not([hidden]), .kv-cache:not([hidden])"
    assert tab.page.locator(left).count() == 0
    assert tab.page.locator(".sentence").is_visible()


@pytest.mark.night
def test_reduced_motion_shows_stills(saved_page: SavedPages) -> None:
    tab = opened(saved_page, RACES["1-describe"])
    enter(tab, 5)
    moving = """() => [...document.querySelectorAll('.tree *, .tree, .kv-cache *, .mask *')].filter((element) => {
      const style = getComputedStyle(element);
      return style.animationName !== 'none' || style.transitionDuration.split(', ').some((time) => time !== '0s');
    }).length"""
    assert {count for _, _, count in walk(tab, moving)} == {0}


@pytest.mark.night
@pytest.mark.parametrize("width", [375, 1280])
def test_inside_a_step_nothing_is_inaccessible_or_wider_than_the_page(width: int, visit: Visitor) -> None:
    tab = visit(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    tab.page.click(".inside-toggle")
    for kind in sample(("root", "check", "accept", "keep"), 2):
        tab.page.locator(".phase-list button", has_text=kind).click()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert_accessible(tab.page, ".step")
    assert tab.page.locator(".mask svg").is_visible() == (width > 760)
    tab.page.locator(".mask-fold > summary").click()
    assert tab.page.locator(".mask svg").is_visible() == (width <= 760)


@pytest.mark.alone
@pytest.mark.night
@pytest.mark.parametrize("pruned", [False, True])
def test_a_phase_of_the_largest_tree_is_drawn_within_50_ms(pruned: bool, saved_page: SavedPages) -> None:
    race = largest_race()
    (step,) = race.lead.steps
    assert len(step.tree) == 257 and len(step.pruned) == 256
    tab = opened(saved_page, race)
    if pruned:
        tab.page.click(".with-pruned span")
    enter(tab)
    medians = [statistics.median(times) for times in tab.page.evaluate(TIMES, 5)]
    print(f"milliseconds of a phase, pruned guesses drawn {pruned}: {[round(time, 1) for time in medians]}")
    assert 0 < max(medians) < 50, medians


@pytest.mark.night
def test_a_cut_guess_falls_with_its_label_and_edge_and_a_new_one_fades_in_at_its_place(saved_page: SavedPages) -> None:
    tab = opened(saved_page, RACES["1-describe"], reduced_motion="no-preference", **WAITING)
    tab.page.click(".with-pruned span")
    enter(tab, 5)
    moves = """(state) => [...document.querySelectorAll(`.tree .${state}`)].map((element) =>
      [element.matches(".point") ? "point" : element.tagName, getComputedStyle(element).transitionProperty])"""
    tab.page.locator(".phase-list button", has_text="prune").click()
    assert sorted({tuple(one) for one in tab.page.evaluate(moves, "ph-cut")}) == [
        ("g", "opacity, translate"), ("path", "opacity, translate"), ("point", "opacity, translate"),
    ]  # fmt: skip
    tab.page.locator(".phase-list button", has_text="guess 1").click()
    assert {how for _, how in tab.page.evaluate(moves, "ph-guess")} == {"opacity"}
