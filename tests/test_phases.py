"""Inside a step, in a browser: its phases on the tree, the attention mask and the KV cache, checked against the traces.

Most of it is tried on saved pages, which have no server; there is one player.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import PATIENCE, Visit, Visitor
from support.shipped_races import shipped_races
from support.visual_traces import retexted, synthetic_race, synthetic_steps, vocabulary

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import Pruned
from visual.figures.step_layout import StepLayout
from visual.player.frames import FrameList, recorded_frames
from visual.player.recorded import Recorded, read_recorded
from visual.player.standalone import standalone_page

Open = Callable[..., Visit]
OLD = sorted((Path(__file__).parent / "data").glob("*.schema-1.*.json"))
RACES = {race.name: race for race in shipped_races()}
WAITING: dict[str, Any] = {"bypass_csp": True}  # to wait for expressions takes eval, which the page's policy forbids
BLIND = ("root", "guess", "prune", "check")
KEYS = {"full stop": (".", ","), "shift and arrows": ("Shift+ArrowRight", "Shift+ArrowLeft")}

# What a visitor sees of the tree: nodes and labels that are not faded away, the shapes of points, the colours of edges.
SEEN = """() => {
  const chart = document.querySelector(".tree");
  const shown = (element) => element && Number(getComputedStyle(element).opacity) > 0.5;
  const found = { nodes: [], labels: [], shapes: {}, strokes: {}, edges: [], branch: null };
  for (const { customdata = [], uid } of chart.data) {
    const [points, labels] = ["point", "textpoint"].map((name) => chart.querySelectorAll(`.trace${uid} .${name}`));
    customdata.forEach((node, place) => {
      if (!shown(points[place])) return;
      found.nodes.push(node);
      found.shapes[node] = points[place].getAttribute("d");
      found.strokes[node] = getComputedStyle(points[place]).stroke;
      if (shown(labels[place])) found.labels.push(node);
    });
  }
  chart.layout.meta.edges.forEach((ends, shape) => {
    const path = chart.querySelector(`.shapelayer path[data-index="${shape}"]`);
    if (!shown(path)) return;
    found.edges.push([ends, path.getAttribute("d").split("M").length - 1]);
    if (chart.layout.shapes[shape].name === "branch") found.branch = getComputedStyle(path).stroke;
  });
  return found;
}"""
# Every element of the drawing with all its attributes.
ATTRIBUTES = """() => [...document.querySelectorAll(".tree, .tree *")].map(
  ({ tagName, attributes }) => tagName + [...attributes].map(({ name, value }) => `${name}=${value}`).sort().join())"""
COLUMNS = "[...document.querySelectorAll('.cache-column')].map((column) => column.dataset.state)"
BUTTONS = (
    "[...document.querySelectorAll('.phase-list button')]"
    ".map((each) => each.getAttribute('aria-label') ?? each.textContent)"
)
AT = "[...document.querySelectorAll('.phase-list button')].findIndex((each) => each.ariaCurrent === 'step')"
CURRENT = f"({BUTTONS})[{AT}]"
CELLS = "[...document.querySelectorAll('.mask-cells')].map((path) => path.getAttribute('d')).join('')"
TABLE = "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
DRAWN = "document.querySelector('.tree').data.flatMap((trace) => trace.customdata ?? [])"
# Of each fork's chart its node and, by bar, the guess, whether it was cut, and the width.
PANELS = """() => [...document.querySelectorAll(".ph-panel")].map((panel) => [Number(panel.dataset.node),
  [...panel.querySelectorAll(".ph-bar")].map(
    (bar) => [Number(bar.dataset.node), bar.classList.contains("cut"), Number(bar.getAttribute("width"))])])"""
SAID = "() => document.querySelector('.phase-said').textContent"
IMAGES = f"() => [({SAID})(), document.querySelectorAll('.step img').length]"
ACCEPTED = "rgb(0, 114, 178)"

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


@pytest.fixture
def saved(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a race as a saved page; no tab may have asked anybody or logged an error."""
    made: list[Visit] = []

    def open_race(race: Recorded, show: int = 0, **context: Any) -> Visit:
        path = tmp_path / f"{race.name}-{len(made)}.html"
        frames = recorded_frames(race.target_only, race.speculative, show=show)
        path.write_text(standalone_page(frames), encoding="utf-8")
        context = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **context}
        tab = Visit(browser.new_context(**context).new_page())
        made.append(tab)
        tab.page.set_default_timeout(PATIENCE)
        tab.page.on("console", lambda message: tab.errors.extend([message.text] if message.type == "error" else []))
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.on("request", lambda request: tab.calls.append(request.url))
        tab.page.goto(path.as_uri())
        tab.page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
        return tab

    yield open_race
    for tab in made:
        tab.page.context.close()
        assert not tab.errors, tab.errors
        assert all(call.startswith(("file:", "data:", "blob:")) for call in tab.calls), tab.calls


def race_of(*steps: StepTrace, config: DecodingConfig | None = None, **fields: Any) -> Recorded:
    """A race whose speculative lane has these steps."""
    lanes = synthetic_race(1, config)
    return Recorded("made", None, lanes["target-only"], replace(lanes["speculative"], steps=steps, **fields))


def largest_step() -> StepTrace:
    """A tree as large as the options allow, and as many pruned guesses."""
    config = DecodingConfig(depth=12, nodes=256, width=64)
    (step,) = synthetic_steps(random.Random(3), config, 1, least=257)
    tokens = list(vocabulary())
    parents = [parent for parent in range(len(step.tree)) if step.tree.depths()[parent] < 12]
    guesses = (Pruned(parents[i % len(parents)], tokens[i % len(tokens)], math.log(0.01)) for i in range(256))
    return replace(step, pruned=tuple(guesses))


def enter(tab: Visit, step: int = 0) -> None:
    """Go to a step, from 0, and inside it."""
    tab.page.click("[data-do=first]")
    for _ in range(step):
        tab.page.click("[data-do=next]")
    if not tab.page.locator(".phases").is_visible():
        tab.page.click(".inside-toggle")
    tab.page.wait_for_selector(".tree[data-phase=root]")


def walk(tab: Visit, read: str = "() => null") -> list[tuple[str, int, Any]]:
    """Go through the phases of the step on show: their kinds, the level of a guess, and what ``read`` finds there."""
    script = f"""(() => {{
      const read = {read};
      return [...document.querySelectorAll(".phase-list button")].map((button) => {{
        button.click();
        return [document.querySelector(".tree").dataset.phase, button.getAttribute("aria-label") ?? "", read()];
      }});
    }})()"""
    return [(kind, int(name.partition(", level ")[2] or 0), found) for kind, name, found in tab.page.evaluate(script)]


def cut_in(layout: StepLayout) -> list[int]:
    """Pruned guesses, but those behind an end of the answer: they are told nowhere."""
    return [node for node in layout.pruned if node not in layout.hidden]


def expected_nodes(layout: StepLayout, kind: str, level: int, drawn: set[int]) -> set[int]:
    """Nodes that are to be seen in a phase."""
    tree = set(range(layout.next_node))
    if kind in ("root", "guess"):
        return {n for n in {*tree, *cut_in(layout)} & drawn if layout.depths[n] <= level}
    if kind == "keep":
        return {*layout.step.verification.path, layout.next_node} & drawn - layout.hidden
    return tree


@pytest.mark.parametrize("name", ["1-describe", "2-story", "3-count", "blank"])
@pytest.mark.parametrize("pruned", [False, True])
def test_each_phase_shows_the_nodes_of_its_depth_and_no_verdict_before_its_time(
    name: str, pruned: bool, saved: Open
) -> None:
    race = RACES[name]
    tab = saved(race)
    if pruned:
        tab.page.click(".with-pruned span")
    for number, step in list(enumerate(race.lead.steps))[:6]:
        enter(tab, number)
        layout = StepLayout(race.lead, step)
        drawn = set(tab.page.evaluate(DRAWN))
        walked = walk(tab, SEEN)
        for kind, level, seen in walked:
            assert set(seen["nodes"]) == expected_nodes(layout, kind, level, drawn), (number, kind, level)
            assert set(seen["labels"]) <= set(seen["nodes"])
            ends = {node for nodes, _ in seen["edges"] for node in nodes}
            pieces = sum(count for _, count in seen["edges"])
            if kind == "guess":
                stubs = {node for node in cut_in(layout) if layout.depths[node] <= level}
                assert pieces == len(({*seen["nodes"]} | stubs) - {0})
            if kind in BLIND:
                guessed = [n for n in seen["nodes"] if 0 < n < layout.next_node]
                assert len({seen["shapes"][str(n)] for n in guessed}) <= 1, "a guess shows its verdict"
                assert len({seen["strokes"][str(n)] for n in guessed}) <= 1, "a guess shows its verdict"
                assert seen["branch"] != ACCEPTED
            elif kind == "accept" and step.verification.accepted:
                assert seen["branch"] == ACCEPTED
                assert set(range(1, layout.next_node)) <= ends
        levels = max(layout.depths[n] for n in {*range(layout.next_node), *cut_in(layout)})
        prune, accept = ["prune"] * bool(cut_in(layout)), ["accept"] * (len(step.tree) > 1)
        assert [kind for kind, _, _ in walked] == ["root", *["guess"] * levels, *prune, "check", *accept, "keep"]


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_old_traces_have_phases_too(path: Path, saved: Open) -> None:
    race = read_recorded(path)
    tab = saved(race)
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        kinds = [kind for kind, _, said in walk(tab, SAID) if said]
        assert (kinds[0], kinds[-1], len(kinds)) == ("root", "keep", len(tab.page.evaluate(BUTTONS)))
        assert tab.page.evaluate(COLUMNS).count("kept") == len(step.verification.path)


@pytest.mark.parametrize("name", ["1-describe", "before"])
def test_the_mask_is_the_trees_own_and_positions_are_depths_behind_the_context(name: str, saved: Open) -> None:
    race = RACES[name]
    tab = saved(race)
    cached = race.lead.prefill.prompt_tokens
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        size = len(step.tree)
        cells = tab.page.evaluate(CELLS)
        corners = [(float(x), float(y), float(w)) for x, y, w in re.findall(r"M([\d.]+),([\d.]+)h([\d.]+)", cells)]
        left, top, cell = min(x for x, _, _ in corners), min(y for _, y, _ in corners), corners[0][2]
        filled = {(round((y - top) / cell), round((x - left) / cell)) for x, y, _ in corners}
        mask = step.tree.ancestor_mask()
        assert filled == {(i, j) for i in range(size) for j in range(size) if mask[i, j]}
        if not number:
            tab.page.click(".mask .table summary")
            tab.page.wait_for_selector(".mask tbody tr")
        rows = tab.page.eval_on_selector_all(".mask tbody tr", TABLE)
        assert [int(row[1]) for row in rows] == [cached + depth for depth in step.tree.depths()]
        assert [len(row[2].split(" ")) if row[2] else 0 for row in rows] == list(step.tree.depths())
        cached += len(step.verification.path)


def test_kept_columns_are_the_accepted_path_and_the_cache_grows_by_them(saved: Open) -> None:
    race = RACES["1-describe"]
    tab = saved(race)
    cached = race.lead.prefill.prompt_tokens
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        counts = [int(text) for text in tab.page.locator(".cache-block b").all_inner_texts()]
        assert sum(counts) == cached
        for kind, level, states in walk(tab, f"() => {COLUMNS}"):
            path, depths = step.verification.path, step.tree.depths()
            waiting = ["waiting" if depth <= level else "absent" for depth in depths]
            assert states == {
                "root": waiting, "guess": waiting, "prune": ["waiting"] * len(depths), "check": ["read"] * len(depths),
                "accept": ["kept" if n in path else "read" for n in range(len(depths))],
                "keep": ["kept" if n in path else "dropped" for n in range(len(depths))],
            }[kind]  # fmt: skip
        cached += len(path)
        assert f"{cached} for the next step" in tab.text(".cache-note")


def test_a_turn_that_reused_columns_says_so(saved: Open) -> None:
    race = RACES["3-count"]
    again = replace(race.lead, prefill=replace(race.lead.prefill, reused_tokens=60))
    tab = saved(replace(race, speculative=again))
    enter(tab)
    blocks = tab.page.locator(".cache-block").all_inner_texts()
    assert [re.sub(r"\s+", " ", text) for text in blocks[:2]] == ["60 reused", "18 prompt"]


def test_captions_say_what_the_trace_holds(saved: Open) -> None:
    race = RACES["1-describe"]
    tab = saved(race)
    saves = 0
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        said = {(kind, level): text for kind, level, text in walk(tab, SAID)}
        assert f"judges all {step.tree.drafted} guesses at once" in said["check", 0]
        cut = cut_in(StepLayout(race.lead, step))
        assert said.get(("prune", 0), "0 guess").startswith(f"{len(cut)} guess")
        root = step.tree.entropies[0]
        if f"After “{race.lead.texts[step.tree.tokens[0]].strip()}”" in said["guess", 1]:
            assert root is not None
            assert f"{root:.2f} nats ≈ {math.exp(round(root, 2)):.1f} even choices" in said["guess", 1]
        ranks = step.tree.sibling_ranks()
        saved_at = [n for n in step.verification.accepted if ranks[n]]
        assert ("it saved" in said["accept", 0]) == bool(saved_at)
        if saved_at:
            tokens = len(step.verification.path) - step.verification.path.index(saved_at[0])
            assert f"it saved {tokens} token" in said["accept", 0]
            saves += 1
        kept, read = len(step.verification.path), len(step.tree)
        assert f"{kept} of the {read} new columns" in said["keep", 0] or kept == read
        assert ("The answer ends here" in said["keep", 0]) == (len(step.emitted) < kept)
    assert saves, "no step of this race shows what a tree is for"


def test_at_a_fork_the_parents_distribution_opens_at_the_node(saved: Open) -> None:
    race = RACES["1-describe"]
    tab = saved(race)
    shown = 0
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        layout = StepLayout(race.lead, step)
        families: dict[int, list[int]] = {}
        for node in [*range(1, layout.next_node), *cut_in(layout)]:
            families.setdefault(layout.parents[node], []).append(node)
        for kind, level, panels in walk(tab, PANELS):
            forks = [n for n, family in families.items() if len(family) > 1 and layout.depths[n] == level - 1]
            assert {node for node, _ in panels} <= set(forks if kind == "guess" else [])
            shown += len(panels)
            assert len(panels) >= min(1, len(forks)) if kind == "guess" else not panels
            for node, bars in panels:
                assert {guess for guess, _, _ in bars} <= set(families[node])
                assert all(cut == (guess > layout.next_node) for guess, cut, _ in bars)
                widths = [width for _, _, width in bars]
                assert widths == sorted(widths, reverse=True)
    assert shown > 10


def test_leaving_restores_every_attribute_of_the_drawing(saved: Open) -> None:
    """The drawing alone: the player draws the tree anew as well, since its card is wider then."""
    tab = saved(RACES["1-describe"], show=5, **WAITING)
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
          const step = readStep(frame);
          const list = phasesOf(step, 0.3);
          const drawing = createDrawing(document.querySelector(".tree"));
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


@pytest.mark.parametrize(("forward", "back"), KEYS.values(), ids=KEYS)
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


def test_a_row_of_the_mask_and_its_node_light_each_other(saved: Open) -> None:
    race = RACES["1-describe"]
    tab = saved(race, **WAITING)
    enter(tab, 5)
    tree = race.lead.steps[5].tree
    tab.page.locator(".phase-list button", has_text="check").click()
    box = tab.page.locator(".mask svg").bounding_box()
    frame = tab.page.locator(".mask-frame").bounding_box()
    for node in (3, len(tree) - 1):
        height = frame["height"] / len(tree)
        tab.page.mouse.move(frame["x"] + 5, frame["y"] + (node + 0.5) * height)
        halos = "document.querySelector('.tree').data.find((trace) => trace.name === 'marked').x"
        chosen = 1  # its own halo stays, wherever it is
        path = tree.path(node)
        tab.wait(f"{halos}.length >= {len(path)} && {halos}.length <= {len(path) + chosen}")
        said = tab.text(".mask-said")
        for above in path[:-1][-5:]:
            assert f"“{race.lead.texts[tree.tokens[above]].strip()}”" in said
        row = tab.page.locator(".mask-row").bounding_box()
        assert row["y"] == pytest.approx(frame["y"] + node * height, abs=1.5)
    tab.page.mouse.click(frame["x"] + 5, frame["y"] + 1.5 * height)
    tab.page.mouse.move(box["x"] - 20, box["y"])
    assert tab.text(".node-word") == race.lead.texts[tree.tokens[1]].strip()
    siblings = [n for n in tree.children()[0] if n != 1]
    assert ("does not see its sibling" in tab.text(".mask-said")) == bool(siblings)


def test_slow_play_goes_through_phases_and_a_pause_keeps_its_phase(saved: Open) -> None:
    tab = saved(RACES["2-story"], reduced_motion="no-preference", **WAITING)
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


def test_play_goes_through_whole_steps_while_no_step_is_open(saved: Open) -> None:
    tab = saved(RACES["2-story"], reduced_motion="no-preference", **WAITING)
    tab.page.select_option(".speed", "0.05")
    tab.page.click("[data-do=first]")
    tab.page.click("[data-do=play]")
    tab.wait("Number(document.querySelector('.step-name').textContent.split(' ')[1]) >= 3")
    assert tab.page.evaluate("document.querySelector('.tree').dataset.phase") is None


def test_reduced_motion_shows_stills(saved: Open) -> None:
    tab = saved(RACES["1-describe"])
    enter(tab, 5)
    moving = """() => [...document.querySelectorAll('.tree *, .tree, .kv-cache *, .mask *')].filter((element) => {
      const style = getComputedStyle(element);
      return style.animationName !== 'none' || style.transitionDuration.split(', ').some((time) => time !== '0s');
    }).length"""
    assert {count for _, _, count in walk(tab, moving)} == {0}


def test_what_models_say_is_text_in_phases_mask_and_cache(saved: Open) -> None:
    race = RACES["1-describe"]
    words = set(race.lead.texts) - set(race.lead.eos_token_ids)
    hostile = {token: f' <img src=x onerror="window.hacked=1">{token}' for token in words}
    tab = saved(replace(race, speculative=retexted(race.lead, hostile), target_only=None))
    enter(tab, 5)
    for _, _, (text, images) in walk(tab, IMAGES):
        assert "<img" in text or "guess" in text
        assert images == 0
    assert tab.page.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_inside_a_step_nothing_is_inaccessible_or_wider_than_the_page(scheme: str, width: int, visit: Visitor) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = visit(color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce")
    tab.page.click(".inside-toggle")
    for kind in ("root", "check", "accept", "keep"):
        tab.page.locator(".phase-list button", has_text=kind).click()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(tab.page, context=".step").response["violations"]
        serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
        assert not serious, [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in serious]
    assert tab.page.locator(".mask svg").is_visible() == (width > 760)
    tab.page.locator(".mask-fold > summary").click()
    assert tab.page.locator(".mask svg").is_visible() == (width <= 760)


def test_a_step_without_guesses_has_phases(saved: Open) -> None:
    race = RACES["3-count"]
    assert race.target_only is not None
    tab = saved(replace(race, speculative=None))
    enter(tab, 1)
    assert tab.page.evaluate(BUTTONS) == ["root", "check", "keep"]
    assert all(said for _, _, said in walk(tab, SAID))
    assert tab.page.evaluate(COLUMNS) == ["kept"]


def test_cached_columns_in_the_frames_of_a_growing_run_are_those_of_the_whole() -> None:
    race = RACES["1-describe"]
    assert race.target_only is not None and race.speculative is not None

    def cached(frames: list[str]) -> list[int]:
        return [frame["cached"] for frame in map(json.loads, frames) if "cached" in frame]

    whole = cached(recorded_frames(race.target_only, race.speculative))
    grown = FrameList("live run", live=True)
    for count in range(1, len(race.speculative.steps) + 1):
        part = replace(race.speculative, steps=race.speculative.steps[:count], finish_reason="stopped")
        grown.update({"target-only": race.target_only, "speculative": part})
    assert cached(grown.frames) == whole
    said = [len(token_ids_before(race.speculative, number)) for number in range(len(whole))]
    assert whole == [race.speculative.prefill.prompt_tokens + count - 1 for count in said]


def token_ids_before(trace: DecodeTrace, number: int) -> list[int]:
    """What had been said before a step: all of it is cached but the last, the step's root."""
    return [trace.prefill.first_token, *(token for step in trace.steps[:number] for token in step.emitted)]


@pytest.mark.alone
@pytest.mark.parametrize("pruned", [False, True])
def test_a_phase_of_the_largest_tree_is_drawn_within_50_ms(pruned: bool, saved: Open) -> None:
    step = largest_step()
    assert len(step.tree) == 257 and len(step.pruned) == 256
    tab = saved(race_of(step, config=DecodingConfig(depth=12, nodes=256, width=64)))
    if pruned:
        tab.page.click(".with-pruned span")
    enter(tab)
    medians = [statistics.median(times) for times in tab.page.evaluate(TIMES, 5)]
    print(f"milliseconds of a phase, pruned guesses drawn {pruned}: {[round(time, 1) for time in medians]}")
    assert 0 < max(medians) < 50, medians
