"""The opening: the recorded run in the document itself, seen before a script has run, and taken away without a jump."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_page import HOSTILE, PATIENCE, Server, Visit, Visitor, browser, server, visit  # noqa: F401 - fixtures
from visual_traces import retexted, synthetic_race, synthetic_recorded

from visual.opening import Asked, Opened, opening
from visual.placed import PlacedStep
from visual.player import recorded_frames
from visual.still import SYMBOLS, still_tree
from visual.tree_figure import MARKERS, tree_drawing

ASKED = Asked("What is <b>there</b>?", None, True, ("Who?",), ("Why?",), ("A lesson",), True)
PARTS = (".picture-card", ".question-card", ".learn-card", ".cards", ".race", ".step")
# Text and box of every part, in the opening where it stands and in the live page where it does not.
READ = """(parts) => {
  const root = document.getElementById("opening")?.shadowRoot ?? document;
  return parts.map((part) => {
    const element = root.querySelector(part);
    const { x, y, width, height } = element.getBoundingClientRect();
    return { part, text: element.innerText.replace(/\\s+/g, " ").trim(), box: [x, y + scrollY, width, height] };
  });
}"""
NO_GRADIO = re.compile(r"/assets/index-.*\.js")


def drawn_steps(texts: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    trace = synthetic_race(3)["speculative"]
    trace = retexted(trace, texts) if texts else trace
    return [tree_drawing(PlacedStep(trace, step)) for step in trace.steps]


@pytest.mark.parametrize("texts", [None, HOSTILE])
def test_a_still_tree_holds_every_node_and_label_as_text(texts: Mapping[int, str] | None) -> None:
    for figure in drawn_steps(texts):
        svg = ElementTree.fromstring(still_tree(figure, 0))
        nodes = [trace for trace in figure["data"] if "customdata" in trace and trace["visible"]]
        ids = [node for trace in nodes for node in trace["customdata"]]
        assert len(svg.findall(".//g[@class='points']/svg")) == len(ids) and 0 in ids
        assert len(svg.findall(".//circle[@class='chosen']")) == 1
        labels = [label for trace in nodes for label in trace["text"]]
        shown = [element.text or "" for element in svg.findall(".//text")]
        assert shown == [ElementTree.fromstring(f"<b>{label}</b>").text for label in labels]
        edges = [path.attrib["d"] for path in svg.findall("./svg/g/path")]
        assert " ".join(edges).count("M") == len(ids) - 1
        assert edges == [shape["path"] for shape in figure["layout"]["shapes"]]


def test_still_places_are_the_figures() -> None:
    for figure in drawn_steps():
        svg = ElementTree.fromstring(still_tree(figure, 0))
        left, right = figure["layout"]["xaxis"]["range"]
        xs = [x for trace in figure["data"] if "customdata" in trace and trace["visible"] for x in trace["x"]]
        drawn = [float(element.attrib["x"].rstrip("%")) for element in svg.findall(".//g[@class='points']/svg")]
        assert drawn == pytest.approx([100 * (x - left) / (right - left) for x in xs], abs=0.01)


def test_there_is_an_outline_for_every_symbol_that_is_drawn_at_first() -> None:
    assert {look["symbol"] for verdict, look in MARKERS.items() if verdict != "pruned"} == SYMBOLS.keys()


def test_what_a_model_said_is_text_in_the_opening() -> None:
    race = {lane: retexted(trace, HOSTILE) for lane, trace in synthetic_race(3).items()}
    race = {lane: replace(trace, prompt="</template><script>alert(1)</script>") for lane, trace in race.items()}
    written = opening(recorded_frames(race["target-only"], race["speculative"]), ASKED)
    assert "&lt;img src=x" in written and "<img src=x" not in written
    assert "<script>alert" not in written and "&lt;script&gt;alert" in written
    assert "What is &lt;b&gt;there" in written


def test_a_run_without_a_step_has_an_opening_too() -> None:
    empty = {lane: replace(trace, steps=()) for lane, trace in synthetic_race(3).items()}
    assert "Run the race" in opening(recorded_frames(empty["target-only"], empty["speculative"]), ASKED)


def response(written: Callable[[Mapping[str, str]], str], path: str, query: str = "", method: str = "GET") -> bytes:
    """What comes out of the middleware around a page that arrives in two pieces."""
    sent: list[dict[str, Any]] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"32")]})
        await send({"type": "http.response.body", "body": b'<html><body style="a">', "more_body": True})
        await send({"type": "http.response.body", "body": b"the page</body>"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    asyncio.run(Opened(page, written)(scope, None, send))  # type: ignore[arg-type]
    body = b"".join(message.get("body", b"") for message in sent)
    if path == "/" and method == "GET":
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
    return body


def test_only_the_pages_own_document_gets_an_opening() -> None:
    def written(query: Mapping[str, str]) -> str:
        return f"<i>{query.get('example')}</i>"

    plain = b'<html><body style="a">the page</body>'
    assert response(written, "/", "example=2%20b&step=3") == b'<html><body style="a"><i>2 b</i>the page</body>'
    assert response(written, "/config") == response(written, "/", method="POST") == plain


def test_a_page_whose_opening_fails_comes_without_one() -> None:
    def written(query: Mapping[str, str]) -> str:
        raise RuntimeError("no picture")

    assert response(written, "/") == b'<html><body style="a">the page</body>'


@pytest.mark.parametrize("width", [1280, 375])
def test_the_player_takes_over_without_a_jump(visit: Visitor, server: Server, browser: Any, width: int) -> None:  # noqa: F811
    shape = {"width": width, "height": 900}
    context = browser.new_context(viewport=shape, java_script_enabled=False)
    page = context.new_page()
    page.goto(server.address)
    early = page.evaluate(READ, PARTS)
    assert page.locator("#opening .still .textpoint text").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    tab = visit(viewport=shape)
    assert tab.page.locator("#opening, .still").count() == 0
    tab.wait("!document.querySelector('.progress-text')")  # the library's clock is text too, though unseen
    for before, after in zip(early, tab.page.evaluate(READ, PARTS), strict=True):
        assert before["text"] == after["text"]
        assert before["box"] == pytest.approx(after["box"], abs=2), before["part"]


def test_until_it_is_drawn_the_tree_stays_as_the_server_drew_it(server: Server, browser: Any) -> None:  # noqa: F811
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    held: list[Any] = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(server.address)
    page.wait_for_selector(".tree .still[aria-hidden=true]")
    assert page.locator("#opening").count() == 0 and page.locator("#run").is_enabled()
    page.wait_for_function("document.fonts.status === 'loaded'")
    page.click("[data-do=first]")
    page.wait_for_selector(".still", state="detached")  # it shows another step
    page.wait_for_timeout(200)
    for route in held:
        route.continue_()
    page.wait_for_selector(".tree .main-svg")
    context.close()


def test_a_link_opens_with_its_own_run_and_nothing_else(server: Server, browser: Any, tmp_path: Path) -> None:  # noqa: F811
    name = synthetic_recorded(tmp_path, 2)[1].name
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.add_init_script(
        """window.seen = new Set();
        const look = () => {
          requestAnimationFrame(look);
          if (document.readyState === "loading") return; // a frame can fall between two parts of the document
          const root = document.getElementById("opening")?.shadowRoot ?? document;
          const [name, sentence] = [".step-name", ".sentence"].map((part) => root.querySelector(part)?.textContent);
          if (name) window.seen.add(`${name}: ${sentence}`);
        };
        requestAnimationFrame(look);"""
    )
    page.goto(f"{server.address}?example={name}&step=3")
    page.wait_for_selector(".tree .main-svg")
    page.wait_for_function("window.seen.size > 0")
    page.wait_for_timeout(500)
    seen = page.evaluate("[...window.seen]")
    assert len(seen) == 1 and seen[0].startswith("Step 3 of "), seen
    assert page.evaluate("JSON.parse(document.querySelector('.tree').data ? '1' : '0')") == 1
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation_in_the_opening(server: Server, browser: Any, scheme: str) -> None:  # noqa: F811
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.route(NO_GRADIO, lambda route: route.abort())
    page.goto(server.address)
    tab = Visit(page)
    assert tab.text("#opening .step-name").startswith("STEP") and page.locator("#opening main.dark").count() == (
        scheme == "dark"
    )
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert not serious, [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in serious]
    context.close()
