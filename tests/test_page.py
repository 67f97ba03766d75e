"""The page in a browser: what a visitor sees and does, against a stand-in for the models.

``FakeBackend`` streams synthetic races, so these tests are about the page alone. A machine without Chromium skips
them and says so; in CI that is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.lab_traces import FakeLab
from support.visual_traces import FakeBackend, synthetic_lessons, synthetic_recorded

IN_CI = bool(os.environ.get("CI"))
if not IN_CI:
    pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the page was not tested in a browser"
    )
from playwright import sync_api  # noqa: E402 - in CI a missing playwright is an error, not a skip

PATIENCE = 90_000  # milliseconds; a busy machine is slow, and only a failure waits for so long
DRAWN = "JSON.stringify(document.querySelector('.tree').data.map(({name, x, y, text}) => ({name, x, y, text})))"
HOSTILE = {5: ' <img src=x onerror="window.hacked=1">', 8: " ${6*7}", 9: " {{value}}", 11: " `<b>x</b>"}


@dataclass
class Server:
    """A page that is being served, and the backend behind it."""

    address: str
    backend: FakeBackend


@dataclass
class Visit:
    """One visitor's tab, with everything that went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def step(self) -> int:
        return int(self.text(".step-name").split()[1])

    def tree(self) -> list[dict[str, Any]]:
        """The figure's data as Plotly holds it."""
        return list(json.loads(self.page.evaluate(DRAWN)))

    def wait(self, condition: str) -> None:
        """Until an expression holds. Playwright gives up at once where it throws: what is absent is waited for too."""
        patient = f"(() => {{ try {{ return {condition}; }} catch (absent) {{ return false; }} }})()"
        self.page.wait_for_function(patient)

    def run(self, question: str) -> None:
        self.page.fill("#question textarea", question)
        self.page.click("#run")


Visitor = Callable[..., Visit]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The page over a stand-in; for real models give ``Pair.from_preset("toy")`` to ``AppState`` instead."""
    import app
    from visual.page.app_state import AppState
    from visual.page.first_paint import FirstPaint
    from visual.page.layout import build_page
    from visual.page.serving import serve

    backend = FakeBackend(pace=0.012, texts={})
    recorded = synthetic_recorded(tmp_path_factory.mktemp("recorded"), 2)
    lessons = synthetic_lessons(recorded)
    site = AppState(lambda: backend, recorded, lessons=lessons, lab=lambda: FakeLab(backend.texts))
    page = build_page(site)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield Server(serve(page, "127.0.0.1", port, block=False, paint=FirstPaint(site, app.FIRST_PAINT)), backend)
    page.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        message = "no Chromium on this machine: the page was not tested in a browser"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(server: Server, browser: Any) -> Iterator[Visitor]:
    """Open the page as a new visitor; at the end no tab may have asked another host or logged an error."""
    made: list[Visit] = []

    def open_page(query: str = "", **context: Any) -> Visit:
        context.setdefault("viewport", {"width": 1280, "height": 900})
        page = browser.new_context(**context).new_page()
        tab = Visit(page)
        made.append(tab)
        page.on("console", lambda message: tab.errors.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: tab.errors.append(str(error)))
        page.on("request", lambda request: tab.hosts.add(urlsplit(request.url).netloc))
        page.on("request", lambda request: tab.calls.append(request.url))
        page.goto(server.address + query)
        page.wait_for_selector(".tree .main-svg")
        return tab

    yield open_page
    for tab in made:
        tab.page.context.close()
        assert not tab.errors, tab.errors
        assert tab.hosts <= {urlsplit(server.address).netloc, ""}, f"asked another host: {tab.hosts}"


FINISHED = (
    "document.querySelector('.same').dataset.state === 'same'"
    " && document.querySelector('.origin').textContent.includes('live')"
)


def test_the_first_paint_teaches_without_a_click(visit: Visitor) -> None:
    tab = visit()
    assert "recorded run" in tab.text(".origin")
    assert "identical" in tab.text(".same")
    assert "accepted" in tab.text(".sentence")
    assert {"marked", "accepted", "next"} <= {trace["name"] for trace in tab.tree()}
    assert tab.page.locator(".tree .traceaccepted .point").count() > 1
    assert tab.page.locator(".tree .shapelayer path").count() > 1
    tab.wait("document.querySelector('.chip').textContent.includes('synthetic pair')")


def test_a_race_runs_to_its_end_and_says_identical(visit: Visitor) -> None:
    tab = visit()
    tab.page.select_option(".speed", "1")
    tab.run("What is on the left?")
    tab.wait(FINISHED)
    tab.page.click("[data-do=last]")
    lanes = [tab.text(f"[data-lane={lane}] .words").replace("■", "").split() for lane in ("target-only", "speculative")]
    assert lanes[0] == lanes[1]
    assert "What is on the left?" in tab.text(".asked")


def test_on_a_phone_the_node_that_the_card_tells_about_is_in_sight(visit: Visitor) -> None:
    tab = visit(viewport={"width": 375, "height": 900})
    seen = """(() => {
      const node = document.querySelector(".tree .tracemarked .point").getBoundingClientRect();
      const card = document.querySelector(".scroller").getBoundingClientRect();
      return node.left >= card.left && node.right <= card.right;
    })()"""
    wide = "document.querySelector('.scroller').scrollWidth > document.querySelector('.scroller').clientWidth"
    assert tab.page.evaluate(wide)
    for _ in range(5):
        tab.wait(seen)
        before = tab.page.evaluate(DRAWN)
        tab.page.click("[data-do=next]")
        tab.wait(f"{DRAWN} !== {json.dumps(before)}")


def test_scrubbing_redraws_the_tree_without_asking_the_server(visit: Visitor) -> None:
    tab = visit()
    tab.page.wait_for_timeout(500)  # let the page's own start-up requests pass
    before, calls = tab.page.evaluate(DRAWN), len(tab.calls)
    box = tab.page.locator(".scrub").bounding_box()
    for share in (0.2, 0.35):
        tab.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    tab.wait(f"{DRAWN} !== {json.dumps(before)}")
    assert len(tab.calls) == calls
    words = tab.page.locator("[data-lane=speculative] .word:not(.later)").count()
    assert 0 < words < tab.page.locator("[data-lane=speculative] .word").count()


def test_keys_step_through_the_race(visit: Visitor) -> None:
    tab = visit()
    tab.page.focus(".stage")
    tab.page.keyboard.press("Home")
    assert tab.step() == 1
    for _ in range(3):
        tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 4
    tab.page.keyboard.press("ArrowLeft")
    assert tab.step() == 3
    word = tab.text(".node-word")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    assert tab.text(".node-word") != word or tab.text(".node-path")
    tab.page.keyboard.press("End")
    assert tab.page.locator(".word.later").count() == 0
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Space")
    assert tab.text(".play") == "Pause"
    tab.wait("!document.querySelector('.step-name').textContent.startsWith('Step 1 ')")


def test_a_word_and_a_block_lead_to_their_step(visit: Visitor) -> None:
    tab = visit()
    tab.page.click("[data-do=last]")
    tab.page.locator("[data-lane=speculative] .word[data-item='2']").first.click()
    assert tab.step() == 2
    tab.page.locator(".track[data-lane=speculative] .lap[data-item='3']").click()
    assert tab.step() == 3
    tab.page.locator(".step .table summary").click()
    tab.page.wait_for_selector(".table tbody tr")
    rows = tab.page.locator(".table tbody tr").count()
    drawn = "document.querySelector('.tree').data.filter((t) => t.visible).flatMap((t) => t.customdata ?? [])"
    assert rows == len(tab.page.evaluate(drawn))


@pytest.mark.parametrize(("question", "words"), [("   ", "prompt is empty"), ("fail now", "Something went wrong")])
def test_errors_are_words_and_the_run_on_show_stays(visit: Visitor, question: str, words: str) -> None:
    tab = visit()
    tab.run(question)
    tab.wait(f"document.querySelector('#notice').textContent.includes({json.dumps(words)})")
    assert "secret" not in tab.text("body")
    assert "recorded run" in tab.text(".origin")
    tab.wait("!document.querySelector('#run').disabled")


def test_a_file_that_is_no_picture_is_refused(visit: Visitor, tmp_path: Path) -> None:
    bad = tmp_path / "not-a-picture.png"
    bad.write_bytes(b"nothing to see")
    tab = visit()
    tab.page.set_input_files("input[type=file]", str(bad))
    tab.wait("document.querySelector('#notice').textContent.includes('cannot be used')")


def test_words_of_the_model_never_become_markup(visit: Visitor, server: Server) -> None:
    server.backend.texts.update(HOSTILE)
    try:
        tab = visit()
        tab.page.select_option(".speed", "1")
        tab.run("Words that bite")
        tab.wait(FINISHED)
        tab.page.click("[data-do=first]")
        for _ in range(4):
            tab.page.click("[data-do=next]")
        assert "<img src=x" in tab.text("[data-lane=speculative] .words")
        assert "${6*7}" in tab.text("[data-lane=speculative] .words")
        assert tab.page.evaluate("window.hacked") is None
        assert tab.page.locator(".player img").count() == 0
    finally:
        server.backend.texts.clear()


def test_a_new_scene_and_a_recorded_race_change_the_picture(visit: Visitor) -> None:
    tab = visit()
    source = "document.querySelector('#picture img').src"
    first = tab.page.evaluate(source)
    tab.page.get_by_role("button", name="New scene").click()
    tab.wait(f"{source} !== {json.dumps(first)}")
    tab.page.locator("button.example").nth(1).click()
    tab.wait(f"{source}.includes('race-1')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_it_fits_in_light_and_dark(visit: Visitor, scheme: str, width: int) -> None:
    tab = visit(color_scheme=scheme, viewport={"width": width, "height": 800})
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    brightness = tab.page.evaluate(
        "getComputedStyle(document.querySelector('.card')).backgroundColor.match(/\\d+/g)[0]"
    )
    assert (int(brightness) < 80) == (scheme == "dark")
    assert tab.page.locator("footer").count() == 0 or not tab.page.locator("footer").first.is_visible()


def test_the_whole_run_answers_questions(visit: Visitor) -> None:
    tab = visit()
    tab.wait("document.querySelector('.chart .main-svg') !== null")
    tabs = tab.page.get_by_role("tab")
    assert tabs.count() == 5 and all(name.endswith("?") for name in tabs.all_inner_texts())
    answers = set()
    for number in range(5):
        tabs.nth(number).click()
        answers.add(tab.text(".answer"))
    assert len(answers) == 5
    tab.page.keyboard.press("ArrowRight")
    assert tabs.first.get_attribute("aria-selected") == "true"
    tab.page.locator(".charts summary").click()
    tab.wait("document.querySelectorAll('.charts td').length > 5")  # the table is filled when it opens


def test_the_trace_on_show_can_be_saved(visit: Visitor, tmp_path: Path) -> None:
    from visual.player.recorded import read_recorded

    tab = visit()
    tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click("[data-file=race]")
    saved = tmp_path / "race.json"
    download.value.save_as(saved)
    parts = json.loads(saved.read_text())
    (tmp_path / parts["image"]).write_bytes(b"")
    assert read_recorded(saved).speculative.prompt == parts["speculative"]["prompt"]


LAB_READY = "document.querySelector('#lab-{name} .lab-run').disabled === false"


def test_an_experiment_runs_when_asked_and_answers_in_words_picture_and_table(visit: Visitor) -> None:
    tab = visit()
    assert tab.page.locator(".lab-result:visible").count() == 0
    tab.page.click("#lab-seeing .lab-run")
    tab.wait("document.querySelectorAll('#lab-seeing .chart .main-svg').length >= 2")
    tab.wait(LAB_READY.format(name="seeing"))
    assert "tokens a pass" in tab.text("#lab-seeing .answer")
    words = tab.page.locator("#lab-seeing .gloss-word").count()
    assert tab.page.locator("#lab-seeing .gloss-mark").count() == 3 * words > 30
    tab.page.locator("#lab-seeing summary").click()
    tab.wait(f"document.querySelectorAll('#lab-seeing tbody tr').length === {words}")
    tab.page.fill("#question textarea", "  ")
    tab.page.click("#lab-rules .lab-run")
    tab.wait("document.querySelector('#lab-rules .notice').textContent.includes('prompt is empty')")


def test_a_word_can_be_forced_and_stays_text_on_a_phone(visit: Visitor, server: Server) -> None:
    server.backend.texts.update(HOSTILE)
    try:
        tab = visit(viewport={"width": 375, "height": 800})
        tab.page.click("#lab-fork .lab-run")
        tab.page.locator("#lab-fork .said").nth(5).click()
        said = tab.text("#lab-fork .option b")
        tab.page.locator("#lab-fork .option").first.click()
        tab.page.wait_for_selector("#lab-fork .telling span.forced")
        assert tab.text("#lab-fork .telling span.forced").strip() == said
        assert "in place of" in tab.text("#lab-fork .answer")
        assert "<img src=x" in tab.text("#lab-fork .tellings")
        assert tab.page.evaluate("window.hacked") is None
        assert tab.page.locator("#lab-fork img").count() == 0
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    finally:
        server.backend.texts.clear()
