"""The static edition in a browser, from a plain file server at its root and from a sub-path of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browser import Visit, Visitor, assert_accessible, visits
from support.static_site import file_server
from test_files import hostile_race
from test_files_page import saved, shows_hostile_texts_as_text

from specllava.cli.main import main
from specllava.cli.site import ASSETS
from specllava.race_file import race_json
from visual.player.lessons import load_lessons
from visual.player.recorded import MAX_BYTES, load_recorded

SUB_PATH = "sub/path/"
TRIES = 400  # of 50 ms each
LESSONS, EXAMPLES = load_lessons(ASSETS / "lessons"), load_recorded(ASSETS / "examples")


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


def test_examples_play_at_the_root_of_a_host(page: Visitor, folder: Path) -> None:
    with file_server(folder / SUB_PATH) as address:
        tab = page(address=address)
        assert tab.page.get_attribute("#picture img", "src").startswith("data:image/")
        for race in EXAMPLES:
            tab.page.click(f'.site-examples a[data-opens="example {race.name}"]')
            told(tab, ".asked", race.turns[-1].prompt)
            until(tab, f"document.querySelector('.this-run').textContent && location.search === '?example={race.name}'")
            tab.page.click("[data-do=last]")
            words = tab.page.evaluate("document.querySelector('[data-lane=speculative] .words').textContent")
            assert race.turns[-1].lead.text.split()[0] in words
        tab.page.go_back()
        told(tab, ".asked", EXAMPLES[-2].prompt)
        tab.page.go_back()
        told(tab, ".asked", EXAMPLES[-3].prompt)
        tab.page.click("[data-do=first]")
        tab.page.click("[data-do=play]")
        until(tab, "document.querySelector('.step-name').textContent.startsWith('Step 2 ')")


def test_a_link_opens_a_step_of_a_turn_and_the_menu_gives_it_back(page: Visitor) -> None:
    tab = page("?example=4-dialogue&turn=1&step=5", permissions=["clipboard-write", "clipboard-read"])
    told(tab, ".step-name", "Step 5 ")
    told(tab, ".asked", EXAMPLES[-1].prompt)
    tab.page.click("[data-turn='2']")
    told(tab, ".asked", EXAMPLES[-1].turns[2].prompt)
    tab.page.click(".files summary")
    tab.page.click("[data-file=link]")
    told(tab, ".menu-note", "clipboard")
    link = tab.page.evaluate("navigator.clipboard.readText()")
    assert urlsplit(link).path == f"/{SUB_PATH}"
    assert "example=4-dialogue&turn=3&step=" in link


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


def test_the_inside_of_a_step_what_pays_and_the_glossary_are_there(page: Visitor) -> None:
    tab = page("?example=2-story&step=3")
    tab.page.click(".inside-toggle")
    until(tab, "document.querySelectorAll('.phase-list li').length > 3")
    until(tab, "!document.querySelector('.mask').hidden")
    until(tab, "document.querySelector('.pays-rows tbody').rows.length > 3")
    told(tab, ".pays-verdict", "It ")
    tab.page.click(".glossary summary")
    tab.page.click(".glossary [data-show='.tree']")
    until(tab, "document.querySelector('.tree').classList.contains('pointed-at')")


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


@pytest.mark.parametrize(("query", "notice"), [
    ("?example=nope", "There is no example “nope”; there are 1-describe"),
    ("?lesson=99", "There is no lesson “99”; there are lessons 1 to"),
    ("?example=2-story&step=x", "The link asks for step “x”; steps are numbers from 1 to"),
])  # fmt: skip
def test_a_link_that_leads_nowhere_says_so_and_shows_something(page: Visitor, query: str, notice: str) -> None:
    tab = page(query)
    told(tab, "#site-notice", notice)
    assert tab.step() >= 1


def test_axe_finds_nothing_serious_and_a_phone_need_not_scroll_sideways(page: Visitor) -> None:
    viewport = {"width": 375, "height": 800}
    tab = page("?lesson=3", viewport=viewport, reduced_motion="reduce")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    assert_accessible(tab.page)
    ink = tab.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor.match(/\\d+/g)[0] < 80")
    assert ink  # the last scheme that axe looked at was the dark one


# --- a visitor's own files ------------------------------------------------------------------------------------------

DROP = """(files) => {
  const carried = new DataTransfer();
  for (const [name, text] of files) carried.items.add(new File([text], name));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def dropped(tab: Visit, *files: tuple[str, str]) -> None:
    tab.page.evaluate(DROP, [list(file) for file in files])


def test_a_dropped_race_is_shown_as_text_and_a_bad_file_changes_nothing(page: Visitor) -> None:
    race = hostile_race()
    tab = page("?lesson=2")
    dropped(tab, ("good.json", race_json(race["target-only"], race["speculative"])))
    told(tab, ".origin", "from good.json")
    assert tab.page.locator(".lesson").is_hidden()
    assert tab.page.locator("#picture img").count() == 0
    assert tab.text("#site-notice") == ""
    tab.page.click("[data-do=last]")
    shows_hostile_texts_as_text(tab)
    before = tab.page.evaluate("location.href")
    for name, text, why in (
        ("bad.json", '{"image": "x.png", "target_only": {}}', "bad.json is not a recorded race: target_only."),
        ("bad.json", "{", "it is no JSON"), ("page.html", "<p>hello", "it is no page that was saved here"),
        ("large.json", " " * (MAX_BYTES + 1), f"it has {MAX_BYTES + 1:,} bytes, and at most {MAX_BYTES:,} are read"),
    ):  # fmt: skip
        dropped(tab, (name, text))
        told(tab, "#site-notice", why)
        assert "\n" not in tab.text("#site-notice")
    assert tab.page.evaluate("location.href") == before
    assert "from good.json" in tab.text(".origin")
    shows_hostile_texts_as_text(tab)


def test_a_race_is_opened_with_its_picture_and_saved_as_what_it_was(page: Visitor, tmp_path: Path) -> None:
    race, picture = ASSETS / "examples" / "2-story.json", ASSETS / "examples" / "2-story.png"
    tab = page()
    tab.page.set_input_files("#site-file", [str(race), str(picture)])
    told(tab, ".origin", "from 2-story.json")
    assert tab.page.get_attribute("#picture img", "src").startswith("data:image/jpeg")
    again = json.loads(saved(tab, "race", tmp_path).read_text(encoding="utf-8"))
    assert again == json.loads(race.read_text(encoding="utf-8"))
    whole = saved(tab, "page", tmp_path)
    tab.page.click('.site-examples a[data-opens="example 1-describe"]')
    told(tab, ".origin", "recorded run")
    tab.page.set_input_files("#site-file", str(whole))
    told(tab, ".origin", f"from {whole.name}")
    told(tab, ".asked", EXAMPLES[1].prompt)
    assert tab.page.get_attribute("#picture img", "src").startswith("data:image/jpeg")


def test_two_races_are_compared_as_a_and_b(page: Visitor, tmp_path: Path) -> None:
    tab = page()
    files = [(name, (ASSETS / "lessons" / name).read_text(encoding="utf-8")) for name in ("chain.json", "easy.json")]
    dropped(tab, *files)
    told(tab, ".versus-sides", "chain.json")
    told(tab, ".versus-sides", "easy.json")
    told(tab, ".versus-note", "Equal ✓")
    both = saved(tab, "both", tmp_path).read_text(encoding="utf-8")
    tab.page.click("[data-versus=unpin]")
    dropped(tab, ("both.json", both))
    told(tab, ".origin", "from both.json")
    told(tab, ".versus-note", "Equal ✓")
    dropped(tab, *files, ("more.json", "{}"))
    told(tab, "#site-notice", "3 of these files can be a race: open one, or two to compare")
