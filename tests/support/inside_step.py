"""What tests of the inside of a step share: ways into it and through it, and expressions for what is seen there."""

from __future__ import annotations

from typing import Any

from support.browser import SavedPages, Visit
from support.shipped_races import shipped_races
from visual.figures.step_layout import StepLayout
from visual.player.frames import recorded_frames
from visual.player.recorded import Recorded

RACES = {race.name: race for race in shipped_races()}
WAITING: dict[str, Any] = {"bypass_csp": True}  # to wait for expressions takes eval, which the page's policy forbids
COLUMNS = "[...document.querySelectorAll('.cache-column')].map((column) => column.dataset.state)"
BUTTONS = (
    "[...document.querySelectorAll('.phase-list button')]"
    ".map((each) => each.getAttribute('aria-label') ?? each.textContent)"
)
AT = "[...document.querySelectorAll('.phase-list button')].findIndex((each) => each.ariaCurrent === 'step')"
CURRENT = f"({BUTTONS})[{AT}]"
SAID = "() => document.querySelector('.phase-said').textContent"
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


def opened(saved_page: SavedPages, race: Recorded, show: int = 0, **context: Any) -> Visit:
    """Open a race as a saved page, at a step from 0."""
    context = {"reduced_motion": "reduce", **context}
    return saved_page(recorded_frames(race.target_only, race.speculative, show=show), **context)


def enter(tab: Visit, step: int = 0) -> None:
    """Go to a step, from 0, and inside it; from a step before it, by those between them."""
    if tab.step() > step:
        tab.page.click("[data-do=first]")
    while tab.step() <= step:
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
