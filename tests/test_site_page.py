"""The static edition in a browser, from a plain file server at its root and from a sub-path of it."""

from __future__ import annotations

import base64
import gzip
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from support.browser import Visit, Visitor, assert_accessible, visits
from support.static_site import file_server
from support.visual_traces import synthetic_race

from specllava.cli.main import main
from specllava.cli.commands import ASSETS
from specllava.race_file import NamedTrace, comparison_json, race_json
from visual.player.lessons import load_lessons
from visual.player.link import follow_link
from visual.player.race_frames import race_frames
from visual.player.recorded import load_recorded, recorded_race

SUB_PATH = "sub/path/"
TRIES = 1200  # of 50 ms each
LESSONS, EXAMPLES = load_lessons(ASSETS / "lessons"), load_recorded(ASSETS / "examples")
(DIALOGUE,) = (race for race in EXAMPLES if race.later)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the edition below a sub-path."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "sub").mkdir()
    assert main(["site", "--output", str(folder / SUB_PATH)]) == 0
    return folder


@pytest.fixture(scope="module")
def root(folder: Path) -> Iterator[str]:
    """Address of a file server of that directory."""
    with file_server(folder) as address:
        yield address


@pytest.fixture
def page(root: str, browser: Any) -> Iterator[Visitor]:
    """Open the edition; at the end no tab may have asked another host or logged an error."""
    with visits(browser, root + SUB_PATH) as open_page:
        yield open_page


def until(tab: Visit, condition: str) -> None:
    """Until an expression holds; the page's policy forbids what a browser that waits by itself would do."""
    for _ in range(TRIES):
        if tab.page.evaluate(f"() => {{ try {{ return Boolean({condition}); }} catch (absent) {{ return false; }} }}"):
            return
        tab.page.wait_for_timeout(50)
    raise AssertionError(f"it never came: {condition}")


def told(tab: Visit, selector: str, text: str) -> None:
    until(tab, f"document.querySelector({json.dumps(selector)}).textContent.includes({json.dumps(text)})")


@pytest.mark.night
def test_examples_play_at_the_root_of_a_host(page: Visitor, folder: Path) -> None:
    with file_server(folder / SUB_PATH) as address:
        tab = page(address=address)
        assert tab.page.get_attribute("#picture img", "src").startswith("data:image/")
        for race in EXAMPLES:
            tab.page.click(f'.site-examples a[data-opens="example {race.name}"]')
            told(tab, ".asked", race.turns[-1].prompt)
            opened = "document.querySelector('.site-examples a[aria-current]').dataset.opens"
            until(tab, f"document.querySelector('.this-run').textContent && {opened} === 'example {race.name}'")
            tab.page.click("[data-do=last]")
            words = tab.page.evaluate("document.querySelector('[data-lane=speculative] .words').textContent")
            assert race.turns[-1].lead.text.split()[0] in words
        tab.page.go_back()
        told(tab, ".asked", EXAMPLES[-2].turns[-1].prompt)
        tab.page.go_back()
        told(tab, ".asked", EXAMPLES[-3].turns[-1].prompt)
        tab.page.click("[data-do=first]")
        tab.page.click("[data-do=play]")
        until(tab, "document.querySelector('.step-name').textContent.startsWith('Step 2 ')")


@pytest.mark.night
def test_a_link_opens_a_step_of_a_turn_and_the_menu_gives_it_back(page: Visitor) -> None:
    tab = page("?example=4-dialogue&turn=1&step=5", permissions=["clipboard-write", "clipboard-read"])
    told(tab, ".step-name", "Step 5 ")
    told(tab, ".asked", DIALOGUE.prompt)
    tab.page.click("[data-turn='2']")
    told(tab, ".asked", DIALOGUE.turns[2].prompt)
    tab.page.click(".files summary")
    tab.page.click("[data-file=link]")
    told(tab, ".menu-note", "clipboard")
    link = tab.page.evaluate("navigator.clipboard.readText()")
    assert urlsplit(link).path == f"/{SUB_PATH}"
    assert "example=4-dialogue&turn=3&step=" in link


@pytest.mark.night
def test_a_link_opens_a_phase_of_a_step(page: Visitor) -> None:
    tab = page("?example=1-describe&step=5&phase=check&view=explain")
    told(tab, ".step-name", "Step 5 ")
    told(tab, ".phase-list [aria-current=step]", "check")


@pytest.mark.night
def test_a_first_visit_begins_with_the_opening(root: str, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    visit = context.new_page()
    visit.goto(root + SUB_PATH)
    visit.wait_for_selector(".tree[data-phase=root] .main-svg")
    assert visit.inner_text(".opening-title") == "One pass, one word" and not visit.is_visible(".race")
    visit.click("[data-opening=skip]")
    assert visit.is_visible(".race") and not visit.is_visible(".opening")
    context.close()


@pytest.mark.night
def test_lessons_open_at_their_steps_and_lead_on_to_the_last(page: Visitor) -> None:
    tab = page(f"?lesson={len(LESSONS) - 2}", reduced_motion="reduce")
    for lesson in LESSONS[-3:]:
        told(tab, ".lesson-number", f"Lesson {lesson.number} of {len(LESSONS)}")
        told(tab, ".lesson-question", lesson.text.question)
        told(tab, ".step-name", f"Step {lesson.text.step + 1} ")
        tab.page.click("[data-lesson=answer]")
        assert tab.text(".lesson-answer") == lesson.text.answer
        if lesson.number < len(LESSONS):
            tab.page.click("[data-lesson=next]")
    assert urlsplit(tab.page.url).query == f"lesson={len(LESSONS)}"
    assert tab.page.locator("[data-lesson=next]").is_hidden()
    tab.page.click("#lessons a[data-opens='lesson 2']")
    told(tab, ".lesson-title", LESSONS[1].text.title)


@pytest.mark.night
def test_the_inside_of_a_step_is_there(page: Visitor) -> None:
    tab = page("?example=2-story&step=3")
    tab.page.click(".inside-toggle")
    until(tab, "document.querySelectorAll('.phase-list li').length > 3")
    until(tab, "!document.querySelector('.mask').hidden")


def test_a_run_is_saved_as_a_page_that_is_what_the_live_page_saves(page: Visitor, tmp_path: Path) -> None:
    from visual.player.standalone import halves

    tab = page("?example=3-count")
    tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click("[data-file=page]")
    download.value.save_as(tmp_path / "saved.html")
    before, behind = halves()
    saved = (tmp_path / "saved.html").read_text(encoding="utf-8")
    assert saved.startswith(before)
    assert saved.endswith(behind)
    assert json.loads(json.loads(saved[len(before) : -len(behind)])[0])["source"] == "saved run"


@pytest.mark.night
@pytest.mark.parametrize(("query", "notice"), [
    ("?example=nope", "There is no example “nope”; there are 1-describe"),
    ("?lesson=99", "There is no lesson “99”; there are lessons 1 to"),
    ("?example=2-story&step=x", "The link asks for step “x”; steps are numbers from 1 to"),
])  # fmt: skip
def test_a_link_that_leads_nowhere_says_so_and_shows_something(page: Visitor, query: str, notice: str) -> None:
    tab = page(query)
    told(tab, "#site-notice", notice)
    assert tab.step() >= 1


@pytest.mark.night
def test_axe_finds_nothing_serious_and_a_phone_need_not_scroll_sideways(page: Visitor) -> None:
    viewport = {"width": 375, "height": 800}
    tab = page("?lesson=3", viewport=viewport, reduced_motion="reduce")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    assert_accessible(tab.page)
    ink = tab.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor.match(/\\d+/g)[0] < 80")
    assert ink  # the last scheme that axe looked at was the dark one


@pytest.fixture(scope="module")
def code(folder: Path, root: str) -> str:
    """Address of the edition's scripts."""
    [scripts] = (folder / SUB_PATH).glob("code-*")
    return f"{root}{SUB_PATH}{scripts.name}"


def two_sides() -> str:
    race, b = synthetic_race(1), synthetic_race(2)["speculative"]
    return comparison_json(NamedTrace("one <b>", race["speculative"]), NamedTrace("two", b), race["target-only"])


def as_data(frames: Sequence[str]) -> list[dict[str, Any]]:
    """Frames with everything in them unpacked, and without the ids that tell runs apart."""
    data = [json.loads(frame) for frame in frames]
    for frame in data:
        frame.pop("id", None)
        if packed := frame.get("file"):
            text = gzip.decompress(base64.b64decode(packed))
            frame["file"] = [turn.traces for turn in recorded_race("race", text).turns]
        frame["held"] = {turn: as_data(one) for turn, one in frame.get("held", {}).items()}
    return data


# --- an edition of one's own races ------------------------------------------------------------------------------------


@pytest.mark.night
def test_an_edition_shows_the_races_of_a_directory(tmp_path: Path, browser: Any) -> None:
    own, output = tmp_path / "own", tmp_path / "edition"
    own.mkdir()
    race = synthetic_race(1)
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    Image.new("RGB", (900, 300), "red").save(own / "scene.jpg", exif=exif)
    (own / 'my "1st" <b>race #1?.json').write_text(race_json(*race.values(), "scene.jpg"), encoding="utf-8")
    (own / "two.json").write_text(two_sides(), encoding="utf-8")
    for file in (ASSETS / "examples").glob("4-dialogue.*"):
        shutil.copy(file, own / f"dialogue{file.suffix}" if file.suffix == ".json" else own)
    assert main(["site", "--output", str(output), "--races", str(own)]) == 0
    assert not any(b"taken at home" in file.read_bytes() for file in output.rglob("*.jp*g"))
    with file_server(output) as address, visits(browser, address) as open_page:
        tab = open_page()
        links = tab.page.locator(".site-examples a")
        for number, name in enumerate(("dialogue", 'my "1st" <b>race #1?', "two")):
            links.nth(number).click()
            until(tab, f"new URLSearchParams(location.search).get('example') === {json.dumps(name)}")
            opened = "document.querySelector('.site-examples a[aria-current]').dataset.opens"
            until(tab, f"{opened} === {json.dumps(f'example {name}')}")
        assert links.count() == 3 and tab.page.locator("#lessons li").count() == len(LESSONS)
        told(tab, ".origin", "side B of a comparison: two")
        tab.page.reload()
        told(tab, ".origin", "side B of a comparison: two")
        links.nth(1).click()
        until(tab, "document.querySelector('#picture img').src.startsWith('data:image/jpeg')")


SLOWLY = """async () => {
  const [plain, seen] = [window.fetch, new Set()];
  window.fetch = async (...asked) => (await new Promise((on) => setTimeout(on, 700))) ?? plain(...asked);
  document.querySelector("[data-do=next]").click();
  document.querySelector("[data-opens='example 2-story']").click();
  const timer = setInterval(() => seen.add(new URLSearchParams(location.search).get("example")), 20);
  await new Promise((on) => setTimeout(on, 650));
  clearInterval(timer);
  return [...seen];
}"""


@pytest.mark.night
def test_an_address_stays_while_its_run_is_still_being_fetched(page: Visitor) -> None:
    """The run before it writes its own address 300 ms after a step of it."""
    tab = page()
    assert tab.page.evaluate(SLOWLY) == ["2-story"]
    told(tab, ".asked", "story")


# --- what an address opens --------------------------------------------------------------------------------------------

FOLLOWED = """async ({ code, queries, examples, lessons }) => {
  const { followLink } = await import(`${code}/site_link.js`);
  return queries.map((query) => followLink(new URLSearchParams(query), examples, lessons));
}"""
OPENED = """async ({ code, list, how }) => (await import(`${code}/site_frames.js`)).opened(list, how)"""


def test_links_lead_where_those_of_the_live_page_lead(page: Visitor, code: str) -> None:
    values = ("", "0", "1", "2", "3", "7", "99", "-3", "x", "1.5", "٣", "1e3", "4-dialogue", "2-story", "nope" * 30)
    names = ("example", "lesson", "turn", "step")
    rng = random.Random(3)
    queries = [{name: rng.choice(values) for name in rng.sample(names, rng.randrange(4))} for _ in range(300)]
    queries += [{"example": race.name, "turn": turn, "step": turn} for race in EXAMPLES for turn in values]
    examples = [{"name": race.name, "steps": [len(turn.lead.steps) for turn in race.turns]} for race in EXAMPLES]
    places = [
        {"number": lesson.number, "step": lesson.text.step, "steps": len(lesson.race.lead.steps)} for lesson in LESSONS
    ]
    asked = {"code": code, "queries": queries, "examples": examples, "lessons": places}
    for query, found in zip(queries, page().page.evaluate(FOLLOWED, asked), strict=True):
        link = follow_link(query, EXAMPLES, LESSONS)
        if link is None:
            assert found is None, query
            continue
        name, number = (link.race.name, None) if link.lesson is None else (None, link.lesson.number)
        assert (found.get("example") or {}).get("name") == name
        assert (found.get("lesson") or {}).get("number") == number
        turn = found["turn"] if found["turn"] is not None else len(link.race.later)
        assert (found["step"], turn if name else 0, bool(found["notice"])) == (link.show, link.turn, bool(link.notice))


@pytest.mark.night
def test_a_turn_a_step_and_a_lesson_are_opened_as_python_opens_them(page: Visitor, code: str) -> None:
    tab, dialogue, lesson = page(), DIALOGUE, LESSONS[0]
    whole = race_frames(dialogue, example=dialogue.name)
    cases = [
        (whole, {"turn": turn, "step": 0}, race_frames(dialogue, example=dialogue.name, show=0, turn=turn))
        for turn in range(len(dialogue.turns))
    ]
    how = {"step": lesson.text.step, "lesson": lesson.words}
    cases.append((race_frames(lesson.race), how, race_frames(lesson.race, show=lesson.text.step, lesson=lesson.words)))
    for frames, asked, expected in cases:
        opened = tab.page.evaluate(OPENED, {"code": code, "list": frames, "how": asked})
        assert as_data(opened) == as_data(expected)
