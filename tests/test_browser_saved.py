"""The static edition in a browser: examples, lessons and links from plain files, under any path; and the saved page."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Visit, Visitor, assert_accessible, visits
from support.shipped_races import ASSETS

from specllava.cli.main import main
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded
from visual.site import StaticSite


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static edition, in a folder below the served one."""
    made = tmp_path_factory.mktemp("www") / "any" / "path"
    made.parent.mkdir()
    site = StaticSite(load_recorded(ASSETS / "examples"), load_lessons(ASSETS / "lessons"), live="https://live.example")
    site.write(made)
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=folder.parents[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/any/path/"
    server.shutdown()


@pytest.fixture
def site(address: str, browser: object) -> Iterator[Visitor]:
    with visits(browser, address) as open_page:
        yield open_page


def choose(tab: Visit, example: int) -> None:
    tab.page.locator(".thumbs .thumb").nth(example).click()


def test_examples_lessons_and_links_open_from_files(site: Visitor) -> None:
    tab = site()
    tab.wait_say("one word per pass")
    choose(tab, 1)
    tab.wait("location.search === '?example=2-story'")
    tab.wait_say("The same")
    tab.page.go_back()
    tab.wait_say("one word per pass")
    tab.page.goto(tab.page.url + "?lesson=16")
    tab.wait("document.querySelector('.at').textContent.includes('does it pay?')")
    tab.page.goto(tab.page.url.partition("?")[0] + "?example=4-dialogue&turn=1&step=2&phase=guess")
    tab.wait("document.querySelector('.at').textContent.startsWith('step 2 of')")
    race = next(one for one in load_recorded(ASSETS / "examples") if one.name == "4-dialogue")
    assert tab.text(".asked") == race.turns[0].prompt
    assert_accessible(tab.page)


def test_a_run_of_the_static_edition_is_saved_as_a_page_of_its_own(site: Visitor, tmp_path: Path) -> None:
    tab = site("?example=3-count")
    tab.wait_say("The same")
    tab.page.click(".save summary")
    with tab.page.expect_download() as waits:
        tab.page.click("[data-save=page]")
    waits.value.save_as(tmp_path / "run.html")
    other = tab.page.context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto((tmp_path / "run.html").as_uri())
    other.wait_for_selector(".stage.alive .plot .main-svg")
    assert other.inner_text(".say h2") == tab.say()
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    other.close()


def test_the_races_are_files_and_nothing_is_of_another_host(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    races = load_recorded(ASSETS / "examples")
    assert 'href="https://live.example"' in page and page.count("https://") == 1  # the link
    index = json.loads(page.partition('id="site">')[2].partition("</script>")[0])
    assert set(index["files"]) >= {race.name for race in races}
    assert all((folder / file).is_file() for file in index["files"].values())
    assert (folder / "README.md").read_text(encoding="utf-8").startswith("---\ntitle: specllava\n")


def test_the_command_writes_the_same_files_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert main(["site", "--output", str(tmp_path / name)]) == 0
    said = capsys.readouterr().out
    assert "index.html is the page" in " ".join(said.split())
    folders = tmp_path / "a", tmp_path / "b"
    one, two = ({str(file.relative_to(folder)) for file in folder.rglob("*")} for folder in folders)
    assert one == two
    assert main(["site", "--output", str(tmp_path / "a")]) == 1
