"""What the target says, as it is seen: nothing covers anything, and the view fits a small laptop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.amount import ALL, sample
from support.browser import SavedPages, Visit, visits
from support.inside_step import RACES, SEEN, opened, walk
from support.visual_traces import synthetic_race

from specllava.config import DecodingConfig
from visual.figures.labels import token_label
from visual.player.frames import recorded_frames
from visual.player.lessons import load_lessons
from visual.player.recorded import Recorded
from visual.player.standalone import standalone_page

LESSONS = {lesson.text.name: lesson for lesson in load_lessons(Path(__file__).resolve().parents[1] / "assets/lessons")}
ROUNDING = 1.5  # pixels: a line of words is as high as its font says, letters are not
# Boxes of the tree's words and of its nodes: [text, node, left, top, right, bottom]; and what its drawing takes.
BOXES = """() => {
  const chart = document.querySelector(".tree");
  const shown = (element) => element && Number(getComputedStyle(element).opacity) > 0.1;
  const box = (name, node, element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return [name, node, left, top, right, bottom];
  };
  const [words, points] = [[], []];
  for (const { customdata = [], uid } of chart.data) {
    const [dots, labels] = ["point", "textpoint"].map((name) => chart.querySelectorAll(`.trace${uid} .${name}`));
    customdata.forEach((node, place) => {
      if (shown(dots[place])) points.push(box("", node, dots[place]));
      if (shown(labels[place]) && labels[place].textContent.trim()) {
        words.push(box(labels[place].textContent, node, labels[place]));
      }
    });
  }
  for (const text of chart.querySelectorAll(".ph-says")) {
    words.push(box([...text.childNodes].filter((part) => part.nodeName !== "title")
      .map((part) => part.textContent).join(""), Number(text.dataset.node), text));
  }
  return { words, points, chart: box("", -1, chart) };
}"""
PARTS = "player.parts = PARTS.map("


def bushy_race() -> Recorded:
    """A race with trees of 60 nodes that branch as widely as EAGLE-2's."""
    lanes = synthetic_race(3, DecodingConfig(depth=6, nodes=60, width=10, max_branches=5))
    assert max(len(step.tree) for step in lanes["speculative"].steps) > 55
    return Recorded("bushy", None, lanes["target-only"], lanes["speculative"])


def overlaps(seen: Any, nodes: bool = True) -> list[str]:
    """Pairs of words of which one covers the other, and words that cover a node of somebody else."""

    def meet(a: Any, b: Any, slack: float) -> bool:
        return bool(
            a[2] < b[4] - slack and b[2] < a[4] - slack and a[3] < b[5] - slack and b[3] < a[5] - slack
        )  # fmt: skip

    words = seen["words"]
    found = [f"{a[0]} | {b[0]}" for i, a in enumerate(words) for b in words[:i] if meet(a, b, ROUNDING)]
    others = [f"{a[0]} on node {b[1]}" for a in words for b in seen["points"] if a[1] != b[1] and meet(a, b, 3)]
    return [*found, *(others if nodes else [])]


@pytest.mark.night
@pytest.mark.parametrize("width", [1280, 375])
def test_no_word_covers_another_in_any_phase(width: int, saved_page: SavedPages) -> None:
    written, several = 0, sample(range(10), 3)
    bushy, coin = (bushy_race(), sample((4, 5), 1)), (LESSONS["coin"].race, sample((3, 4), 1))
    for race, steps in ((RACES["1-describe"], several), bushy, coin):
        tab = opened(saved_page, race, viewport={"width": width, "height": 900})
        for number in steps:
            if number >= len(race.lead.steps):
                continue
            go_inside(tab, number)
            for kind, level, seen in walk(tab, BOXES):
                assert overlaps(seen) == [], (race.name, number, kind, level)
                written += len(seen["words"])
    assert written > (1000 if ALL else 300)


def go_inside(tab: Visit, number: int) -> None:
    """Go to a step, from 0, and inside it, its tree drawn anew."""
    if tab.page.locator(".phases").is_visible():
        tab.page.click(".phase-leave")
    tab.page.click("[data-do=first]")
    for _ in range(number):
        tab.page.click("[data-do=next]")
    tab.page.click(".inside-toggle")
    tab.page.wait_for_selector(".tree[data-phase=root]")
    tab.page.wait_for_timeout(400)  # Plotly draws it for its new room


@pytest.mark.night
def test_the_accepted_branch_is_compared_in_words_and_what_nobody_asked_is_pale(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    tab = opened(saved_page, race)
    pairs = 0
    steps = sample(list(enumerate(race.lead.steps)), 4)
    for number, step in steps:
        go_inside(tab, number)
        tab.page.locator(".phase-list button", has_text="accept").click()
        found = {
            node: (text, float(pale))
            for node, text, pale in tab.page.eval_on_selector_all(
                ".ph-says",
                """(texts) => texts.map((text) => [Number(text.dataset.node), [...text.childNodes]
                  .filter((part) => part.nodeName !== "title").map((part) => part.textContent).join(""),
                  getComputedStyle(text).opacity])
                  .filter(([, text]) => !text.startsWith("→"))""",
            )
        }
        refused = [n for n in range(1, len(step.tree)) if n not in step.emitted_nodes]
        for node in step.emitted_nodes:
            word = token_label(race.lead, step.tree.tokens[node])
            assert found[node] in ((f"✓ = {word}", 1), ("✓", 1)), (number, node)
            pairs += found[node][0] != "✓"
        for node in refused:
            text, pale = found.get(node, ("✗", 1))
            judged = step.tree.parents[node] in step.verification.path[: len(step.emitted)]
            assert text.startswith("✗") if judged else pale < 0.7, (number, node, text)
        assert tab.page.evaluate("document.querySelector('.phase-pairs').textContent").count("kept") == len(
            step.emitted_nodes
        )
    assert pairs > 2 / 3 * sum(len(step.emitted_nodes) for _, step in steps)


@pytest.mark.night
def test_inside_a_step_tree_phases_cache_and_controls_fit_a_small_laptop_and_stand_still(
    saved_page: SavedPages,
) -> None:
    for race, number in ((RACES["1-describe"], 5), (LESSONS["coin"].race, 3), (LESSONS["pass"].race, 7)):
        tab = opened(saved_page, race, show=number, viewport={"width": 1280, "height": 720})
        go_inside(tab, number)
        tops = set()
        for kind, _, (top, bottom, controls, shown) in walk(tab, """() => {
          document.querySelector(".step").scrollIntoView();
          const at = (name) => document.querySelector(name).getBoundingClientRect();
          return [at(".step").top, at(".controls").bottom, at(".controls").top - at(".step").top,
            [".phases", ".tree", ".kv-cache"].map(at).every((b) => b.height > 20 && b.bottom < at(".controls").y)];
        }"""):  # fmt: skip
            assert bottom - top <= 720 - 56, (race.name, kind)  # 56 pixels are the masthead's
            assert shown, (race.name, kind)
            tops.add(round(controls))
        assert len(tops) == 1, (race.name, tops)


@pytest.fixture
def with_parts(browser: Any, tmp_path: Path) -> Iterator[Visit]:
    """A saved page whose player's parts a script can reach, as the parts themselves can."""
    race = RACES["1-describe"]
    page = standalone_page(recorded_frames(race.target_only, race.speculative, show=5))
    assert PARTS in page
    (tmp_path / "saved.html").write_text(page.replace(PARTS, f"window.parts = {PARTS}"), encoding="utf-8")
    with visits(browser, tmp_path.as_uri()) as visited:
        yield visited("/saved.html", reduced_motion="reduce")


@pytest.mark.night
def test_a_phase_can_be_posed_on_the_tree_alone_and_leaves_no_trace(with_parts: Visit) -> None:
    page = with_parts.page
    step = RACES["1-describe"].lead.steps[5]
    page.wait_for_timeout(400)
    before = page.evaluate(SEEN)
    page.evaluate("""() => {
      window.drawn = window.parts.find((part) => part?.pose);
      window.drawn.enter("check");
      window.check = window.drawn.now();
      window.drawn.pose(null);
    }""")
    assert page.locator(".phase-list").count() == 1
    page.evaluate("window.drawn.pose(window.check)")
    page.wait_for_timeout(400)
    assert page.get_attribute(".tree", "data-phase") == "check"
    assert page.locator(":is(.phases, .inside, .mask, .kv-cache, .phase-said)").locator("visible=true").count() == 0
    assert len(page.evaluate(SEEN)["nodes"]) == len(step.tree)
    assert page.locator(".ph-says").count() >= len(step.tree) - 1
    page.evaluate("window.drawn.pose(null)")
    page.wait_for_timeout(400)
    after = page.evaluate(SEEN)
    assert (after["nodes"], after["shapes"], after["strokes"]) == (before["nodes"], before["shapes"], before["strokes"])
    assert page.locator(".ph-layer, .tree [class*='ph-'], .is-inside").count() == 0


def test_the_mask_lights_a_guess_that_has_a_sibling_and_names_all_columns(saved_page: SavedPages) -> None:
    lesson = LESSONS["pass"]
    frames = recorded_frames(None, lesson.race.lead, show=lesson.text.step, lesson=lesson.words)
    tab = saved_page(frames, reduced_motion="reduce")
    tab.page.wait_for_selector(".lesson:not([hidden])")
    tab.page.wait_for_timeout(400)
    if not tab.page.locator(".phases").is_visible():
        tab.page.click(".inside-toggle")
    tab.page.locator(".phase-list button", has_text="check").click()
    tree = lesson.race.lead.steps[lesson.text.step].tree
    first = max(tree.children()[0], key=lambda node: tree.log_probs[node])
    siblings = [token_label(lesson.race.lead, tree.tokens[node]) for node in tree.children()[0] if node != first]
    said = tab.text(".mask-said")
    assert said.startswith(f"“{token_label(lesson.race.lead, tree.tokens[first])}”") and "and itself" in said
    assert siblings and all(f"“{word}”" in said for word in siblings)
    rows, cells = tab.page.locator(".mask-row").bounding_box(), tab.page.locator(".mask-frame").bounding_box()
    assert rows["y"] == pytest.approx(cells["y"] + first * cells["height"] / len(tree), abs=1.5)
    right, names = tab.page.evaluate("""() => [document.querySelector(".mask svg").getBoundingClientRect().right,
      [...document.querySelectorAll(".mask svg text")].map((text) => text.getBoundingClientRect().right)]""")
    assert len(names) > 2 * len(tree) and max(names) <= right


@pytest.mark.night
def test_the_bracket_and_its_words_are_whole_in_trees_of_any_height(saved_page: SavedPages) -> None:
    for race, number in ((bushy_race(), 4), (RACES["1-describe"], 5), (LESSONS["pass"].race, 7)):
        tab = opened(saved_page, race, show=number)
        for pruned in (False, True):
            if pruned and tab.page.is_enabled(".with-pruned input"):
                tab.page.click(".with-pruned span")
            tab.page.wait_for_timeout(400)
            chart = tab.page.locator(".tree").bounding_box()
            words = tab.page.locator(".tree .annotation").bounding_box()
            assert words["y"] + words["height"] <= chart["y"] + chart["height"], (race.name, pruned)
            seen = tab.page.evaluate(BOXES)
            lowest = max(box[5] for box in seen["points"])
            assert words["y"] > lowest, (race.name, pruned)
            if not pruned:
                assert overlaps(seen) == [], race.name
