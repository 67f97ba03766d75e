"""How long a visitor waits: for the first tree, and for the next step's.

    python app.py --port 7861 &  python -m benchmarks.page --address http://127.0.0.1:7861/
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.pictures import chromium
from specllava.cli.options import write_json

PATIENCE = 40_000  # milliseconds
DRAWN = 20  # steps that are timed at a time

# The moment, in milliseconds from the navigation, when a frame with nodes and labels of a recorded tree in it was done.
TREE_SEEN = """
const inked = (element) => element && element.checkVisibility() && element.getBoundingClientRect().width > 0;
const look = () => {
  const tree = document.querySelector(".tree");
  const seen = tree && inked(tree.querySelector(".textpoint text")) && inked(tree.querySelector(".points path"));
  requestAnimationFrame(seen ? () => (window.treeSeen = performance.now()) : look);
};
requestAnimationFrame(look);
"""

NEXT_STEPS = """async (steps) => {
  const chart = document.querySelector(".tree");
  const next = document.querySelector("[data-do=next]");
  for (let step = 0; step < steps; step++) {
    const drawn = new Promise((resolve) => chart.once("plotly_afterplot", resolve));
    next.click();
    await drawn;
  }
}"""


def first_trees(browser: Any, address: str, visits: int) -> list[float]:
    """Seconds until the recorded tree is seen, for visitors who were never here."""
    seen = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1280, "height": 1300})
        page = context.new_page()
        page.add_init_script(TREE_SEEN)
        page.goto(address, wait_until="commit")
        page.wait_for_function("window.treeSeen", timeout=PATIENCE)
        seen.append(page.evaluate("window.treeSeen") / 1e3)
        page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)  # the next visit finds the machine at rest
        context.close()
    return seen


def step_seconds(browser: Any, address: str, rounds: int) -> list[float]:
    """Seconds of a step on the thread that draws, in its processor time, averaged over each round of steps.

    Raises:
        SystemExit: the run at ``address`` has no more steps than are timed.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}?view=workbench")  # every card, and a button for the first step
    page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
    steps = int(page.inner_text(".step-name").split()[-1])
    wanted = DRAWN * rounds + 1
    if steps < wanted:
        raise SystemExit(f"the run has {steps} steps, {wanted} are needed: give a longer one, or fewer rounds")
    page.click("[data-do=first]")  # a run opens at its most telling step
    page.wait_for_function("document.querySelector('.step-name').textContent.startsWith('Step 1 ')", timeout=PATIENCE)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    spent = []
    for _ in range(rounds):
        before = busy()
        page.evaluate(NEXT_STEPS, DRAWN)
        spent.append((busy() - before) / DRAWN)
    page.close()
    return spent


def main(address: str, run: Path | None = None, visits: int = 5, rounds: int = 5, json: Path | None = None) -> None:
    """Measure a page that is served, and a run that was written by ``trace export``.

    Args:
        address: where the page is served.
        run: HTML file of a run with more than ``20 * rounds`` steps, to time stepping with.
        visits: visits that are timed, after one that is not.
        rounds: of 20 steps each.
        json: write the seconds to this file.
    """
    with chromium() as browser:
        found = {"first tree": first_trees(browser, address, visits + 1)[1:]}
        if run is not None:
            found["a step"] = step_seconds(browser, run.resolve().as_uri(), rounds)
    figures = {name: (statistics.median(taken), min(taken), max(taken)) for name, taken in found.items()}
    rows = [(name, *(f"{one:.3f}" for one in own)) for name, own in figures.items()]
    show_table(("seconds", "median", "least", "most"), rows)
    write_json(json, {"seconds": found})


if __name__ == "__main__":
    run_command(main)
