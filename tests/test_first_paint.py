"""The first paint: the page in the document itself, seen before a script has run, and taken away without a jump.

For the first example it is a recording of the live player. It is held to the page here: where a test says that they
differ, ``python -m benchmarks.first_paint`` records it anew.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.amount import sample
from support.browser import HOSTILE, PATIENCE, Server, Visit, new_page
from support.visual_traces import FakeBackend, retexted, synthetic_race, synthetic_recorded

import app
from benchmarks.first_paint import record, shipped_state
from specllava.core.race_file import race_json
from visual.page.app_state import AppState
from visual.page.first_paint import FirstPaint, FirstPaintMiddleware, race_digest
from visual.player.recorded import read_recorded

AGAIN = "the page shows something else than its first paint: run python -m benchmarks.first_paint"
ABOVE = (".picture-card", ".question-card", ".verdict")
PARTS = (*ABOVE, ".race", ".step", ".sentence", ".node")
# Text and box of every part, and of every node and label of the tree, in the first paint where it stands and in the
# live page where it does not.
READ = """(parts) => {
  const root = document.getElementById("first-paint")?.shadowRoot ?? document;
  const box = (element) => {
    const { x, y, width, height } = element.getBoundingClientRect();
    return [x + scrollX, y + scrollY, width, height];
  };
  const told = (element) => [...element.querySelectorAll(".words-before")] // their number depends on the width
    .reduce((text, count) => text.replace(count.innerText, ""), element.innerText).replace(/\\s+/g, " ").trim();
  const look = (element) => {
    const { fill, stroke, strokeWidth } = getComputedStyle(element);
    return `${element.textContent} ${fill} ${stroke} ${strokeWidth}`;
  };
  const edges = root.querySelectorAll(".tree :is(.shapelayer, .still > svg:first-child) path");
  const drawn = [...edges, ...root.querySelectorAll(".tree :is(.point, .textpoint text)")];
  const laps = [...root.querySelectorAll(".track .lap")];
  return [
    ...parts.map((part) => ({ part, text: told(root.querySelector(part)), box: box(root.querySelector(part)) })),
    ...laps.map((lap) => ({ part: "timeline", text: lap.className, box: box(lap) })),
    ...drawn.map((mark) => ({ part: "tree", text: look(mark), box: box(mark) })),
  ];
}"""
NO_GRADIO = re.compile(r"/assets/index-.*\.js")
LINK = "?example=2-story&step=3"


def hostile_site(folder: Path) -> AppState:
    """The shipped page, with a race in front of it in which models and asker say what would be markup."""
    race = {lane: retexted(trace, HOSTILE) for lane, trace in synthetic_race(3).items()}
    race = {lane: replace(trace, prompt="</template><script>alert(1)</script>") for lane, trace in race.items()}
    file = folder / "hostile.json"
    file.write_text(race_json(race["target-only"], race["speculative"], None), encoding="utf-8")
    return replace(shipped_state(), opened=read_recorded(file))


# --- what is in the document ----------------------------------------------------------------------------------------


def test_the_first_example_is_shown_as_it_was_recorded() -> None:
    site = shipped_state()
    markup = FirstPaint(site, app.FIRST_PAINT).markup({})
    assert markup == FirstPaint(site, app.FIRST_PAINT).markup({"__theme": "dark"})
    recorded = app.FIRST_PAINT.read_text(encoding="utf-8")
    assert race_digest(site.first) in recorded.partition("\n")[0], AGAIN
    assert recorded.partition("\n")[2] in markup and 'class="still"' in markup


def test_the_recording_is_small_and_asks_for_nothing() -> None:
    recorded = app.FIRST_PAINT.read_text(encoding="utf-8")
    assert len(recorded.encode()) < 100_000
    assert not re.search(r"<script|<link|<iframe|\son\w+=|https?://|url\((?!#)|/file=|svelte|<!-- [^r]", recorded)
    addresses = re.findall(r'\b(?:src|href)="([^"]*)', recorded)
    assert all(address.startswith(("data:image/", "?view=")) for address in addresses)
    assert not re.findall(r"<(?:button|input|select)\b(?![^>]*\bdisabled)[^>]*>", recorded)


def test_what_was_not_recorded_is_a_plain_page_with_its_question_and_step(tmp_path: Path) -> None:
    site, other = shipped_state(), synthetic_recorded(tmp_path, 1)[0]
    asked = {"example": "2-story", "step": "3"}
    linked = FirstPaint(site, app.FIRST_PAINT).markup(asked)
    assert ">Tell me a story about this picture.</p>" in linked and ">Step 3 of 6</h2>" in linked
    plain = [
        replace(site, opened=other), replace(site, recorded=(other,)), replace(site, pair="smol"),
        replace(site, lab=None), replace(site, recorded=(replace(site.recorded[0], image=None),)),
    ]  # fmt: skip
    for changed in plain:
        markup = FirstPaint(changed, app.FIRST_PAINT).markup({})
        assert f">{changed.first.prompt}</p>" in markup and 'class="still"' not in markup
    assert FirstPaint(replace(site, recorded=()), app.FIRST_PAINT).markup(asked) == ""


def test_a_recording_of_another_race_is_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "first_paint.html"
    file.write_text("<!-- race 0123456789abcdef -->\n<p>of before</p>")
    assert "of before" not in FirstPaint(shipped_state(), file).markup({})
    assert "run python -m benchmarks.first_paint" in caplog.text


def test_a_question_is_text_in_a_plain_page(tmp_path: Path) -> None:
    markup = FirstPaint(hostile_site(tmp_path), app.FIRST_PAINT).markup({})
    assert "&lt;/template&gt;&lt;script&gt;alert" in markup and "<script>alert" not in markup


def test_a_run_without_a_step_has_a_first_paint_too(tmp_path: Path) -> None:
    race = synthetic_recorded(tmp_path, 1)[0]
    empty = {lane: replace(getattr(race, lane), steps=()) for lane in ("target_only", "speculative")}
    markup = FirstPaint(AppState(FakeBackend, (replace(race, **empty),)), app.FIRST_PAINT).markup({})
    assert ">Step</h2>" in markup


def response(path: str, query: str = "", method: str = "GET", paint: Any = None) -> bytes:
    """What comes out of the middleware around a page that arrives in two pieces."""
    sent: list[dict[str, Any]] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"32")]})
        await send({"type": "http.response.body", "body": b'<html><body style="a">', "more_body": True})
        await send({"type": "http.response.body", "body": b"the page</body>"})

    async def send(message: Any) -> None:
        sent.append(message)

    class Paint:
        def markup(self, query: Any) -> str:
            return f"<i>{query.get('example')}</i>"

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    asyncio.run(FirstPaintMiddleware(page, paint or Paint())(scope, None, send))  # type: ignore[arg-type]
    body = b"".join(message.get("body", b"") for message in sent)
    if path == "/" and method == "GET":
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
    return body


def test_only_the_pages_own_document_gets_a_first_paint() -> None:
    plain = b'<html><body style="a">the page</body>'
    assert response("/", "example=2%20b&step=3") == b'<html><body style="a"><i>2 b</i>the page</body>'
    assert response("/config") == response("/", method="POST") == plain


def test_a_page_whose_first_paint_fails_comes_without_one(tmp_path: Path) -> None:
    broken = FirstPaint(shipped_state(), tmp_path / "absent.html")
    assert response("/", paint=broken) == b'<html><body style="a">the page</body>'


# --- what a visitor sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), sample([(375, "light"), (1280, "light"), (1000, "dark")], 2))
def test_the_player_takes_over_without_a_jump(shipped_page: Server, browser: Any, width: int, scheme: str) -> None:
    page = new_page(browser, {"width": width, "height": 900}, color_scheme=scheme)
    page.route(NO_GRADIO, lambda route: route.abort())
    page.goto(shipped_page.address)
    early = page.evaluate(READ, PARTS)
    assert page.locator("#first-paint .still .textpoint text").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
    tab = Visit(new_page(browser, {"width": width, "height": 900}, color_scheme=scheme))
    tab.page.goto(shipped_page.address)
    tab.page.wait_for_selector(".tree .main-svg .textpoint")
    assert tab.page.locator("#first-paint, .still").count() == 0
    tab.wait("!document.querySelector('.progress-text')")  # the library's clock is text too, though unseen
    late = tab.page.evaluate(READ, PARTS)
    tab.page.close()
    assert sum(each["part"] == "tree" for each in early) > 20
    narrow = width < 600  # there the player turns the tree upright, and the chip's words may take a line of their own
    if narrow:
        early, late = ([each for each in parts if each["part"] in ABOVE] for parts in (early, late))
    assert [(each["part"], each["text"]) for each in early] == [(each["part"], each["text"]) for each in late], AGAIN
    for before, after in zip(early, late, strict=True) if not narrow else ():
        assert before["box"] == pytest.approx(after["box"], abs=3), f"{before['part']} {before['text']}: {AGAIN}"


def test_without_scripts_the_first_paint_is_seen(shipped_page: Server, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, java_script_enabled=False)
    page = context.new_page()
    page.goto(shipped_page.address)
    assert page.locator("#first-paint .still .textpoint text").first.is_visible()
    context.close()


def test_what_models_and_asker_say_is_text_in_a_recording(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:  # fmt: skip
    recorded = record(browser, serve(hostile_site(tmp_path)))
    assert "&lt;img src=x" in recorded and "<img src=x" not in recorded
    assert "<script>alert" not in recorded and "&lt;script&gt;alert" in recorded


def test_until_it_is_drawn_the_tree_stays_as_it_was_recorded(shipped_page: Server, browser: Any) -> None:
    page = new_page(browser, {"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    held: list[Any] = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(shipped_page.address)
    page.wait_for_selector(".tree .still[aria-hidden=true]")
    assert page.locator("#first-paint").count() == 0 and page.locator("#run").is_enabled()
    page.wait_for_function("document.fonts.status === 'loaded'")
    page.click("[data-do=first]")
    page.wait_for_selector(".still", state="detached")  # it shows another step
    page.wait_for_timeout(200)
    for route in held:
        route.continue_()
    page.wait_for_selector(".tree .main-svg")
    page.close()


def test_a_link_opens_with_its_own_run_and_nothing_else(shipped_page: Server, browser: Any) -> None:
    page = new_page(browser, {"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.add_init_script(
        """window.seen = new Set();
        const look = () => {
          requestAnimationFrame(look);
          if (document.readyState === "loading") return; // a frame can fall between two parts of the document
          const root = document.getElementById("first-paint")?.shadowRoot ?? document;
          const [name, asked] = [".step-name", ".asked"].map((part) => root.querySelector(part)?.textContent);
          if (name) window.seen.add(`${name}: ${asked}`);
        };
        requestAnimationFrame(look);"""
    )
    page.goto(shipped_page.address + LINK)
    page.wait_for_selector(".tree .main-svg")
    page.wait_for_selector("#first-paint", state="detached")
    page.wait_for_timeout(500)
    assert page.evaluate("[...window.seen]") == ["Step 3 of 6: Tell me a story about this picture."]
    assert page.evaluate("document.querySelector('.tree').data.length") > 0
    page.close()


@pytest.mark.parametrize(("query", "scheme"), [("", "light"), (LINK, "dark")])
def test_axe_finds_no_serious_violation_in_the_first_paint(
    shipped_page: Server, browser: Any, scheme: str, query: str
) -> None:  # fmt: skip
    from axe_playwright_python.sync_playwright import Axe

    page = new_page(browser, {"width": 1280, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE)
    page.route(NO_GRADIO, lambda route: route.abort())
    page.goto(shipped_page.address + query)
    tab = Visit(page)
    assert tab.text("#first-paint .step-name").startswith("STEP")
    assert page.locator("#first-paint main.dark").count() == (scheme == "dark")
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert not serious, [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in serious]
    page.close()
