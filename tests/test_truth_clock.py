"""A live run in the browser shows a step no sooner than its clock has reached it."""

from __future__ import annotations

from support.browser import FINISHED, Visitor

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


def test_d16_a_live_run_waits_for_its_clock(visit: Visitor) -> None:
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
