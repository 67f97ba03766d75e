"""The static edition's files: there whole or not at all, small, self-contained, and true to what Python makes."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from support.visual_traces import synthetic_race

from specllava.cli.main import main
from specllava.cli.commands import ASSETS
from specllava.race_file import race_json
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded
from visual.site.static_site import StaticSite

LIMIT = 10_000_000  # bytes of a static edition
OWN_HOSTS = {"arxiv.org"}  # what the page links to without being told


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edition") / "site"
    told = ["--live", "https://live.example/a?b=1&c", "--code", "https://c.d/e"]
    assert main(["site", "--output", str(folder), *told]) == 0
    return folder


def texts(page: str) -> str:
    """What a reader without scripts sees of a document."""
    visible = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", visible)).split())


@pytest.mark.night
def test_the_edition_is_small_and_its_document_names_only_files_that_are_there(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < LIMIT
    page = (site / "index.html").read_text(encoding="utf-8")
    asked = re.findall(r'(?:src|href)="(?!https?:|\?|#|data:)([^"]+)"', page)
    index = json.loads(re.search(r'id="site">(.*?)</script>', page, re.DOTALL)[1])
    races = [*index["examples"], *index["lessons"]]
    named = {index["plotly"], index["blank"], *(race["file"] for race in races)}
    assert len(asked) > 20
    for address in {*asked, *named}:
        assert (site / address).is_file(), address
    known = {file.relative_to(site).as_posix() for file in files}
    assert known == {*asked, *named, "index.html", "README.md"}  # and nothing is there that nobody asks for


def test_the_words_of_examples_and_lessons_stand_in_the_document_in_their_order(site: Path) -> None:
    shown = texts((site / "index.html").read_text(encoding="utf-8"))
    lessons, examples = load_lessons(ASSETS / "lessons"), load_recorded(ASSETS / "examples")
    said = [part for one in lessons for part in (one.text.title, one.text.question, one.text.answer)]
    said += [part for race in examples for turn in race.turns for part in (turn.prompt, turn.lead.text)]
    places = [shown.find(" ".join(part.split())) for part in said]
    assert len(said) > 40
    assert min(places) >= 0
    behind = shown.index("The answer", places[0])  # the first lesson is the first thing below the player
    titles = [shown.index(f" {one.text.title} {' '.join(one.text.question.split())[:30]}") for one in lessons]
    assert titles == sorted(titles)
    assert titles[0] < behind


def test_the_edition_says_where_the_live_page_is_only_if_it_was_told(site: Path, tmp_path: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="https://live.example/a?b=1&amp;c"' in page
    assert 'href="https://c.d/e/docs"' in page
    assert "https://live.example/a?b=1&c" in (site / "README.md").read_text(encoding="utf-8")
    StaticSite(load_recorded(ASSETS / "examples")[:1], ()).write(tmp_path / "bare")
    bare = (tmp_path / "bare" / "index.html").read_text(encoding="utf-8")
    assert "Live page" not in bare
    assert {*re.findall(r'href="https?://([^/"]+)', bare)} == OWN_HOSTS
    assert "live page" not in (tmp_path / "bare" / "README.md").read_text(encoding="utf-8").lower()


@pytest.mark.night
def test_the_same_edition_has_the_same_files_under_the_same_names(site: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["site", "--output", str(again)]) == 0
    files = [{file.relative_to(folder) for folder in (one,) for file in folder.rglob("*-*")} for one in (site, again)]
    assert len(files[0]) > 20
    assert files[0] == files[1]  # names carry a hash, so the bytes are the same


@pytest.mark.parametrize(("options", "told"), [
    (["--output", "{}"], "exists already"),
    (["--output", "{}/no/where"], "there is no directory"),
    (["--output", "{}/new", "--live", "javascript:alert(1)"], "--live javascript:alert(1)"),
    (["--output", "{}/new", "--code", "https://"], "names a host"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused_in_one_line(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", *(option.format(tmp_path) for option in options)]) == 1
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_an_edition_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", "index.html")

    assets = tmp_path / "assets"
    (assets / "examples").mkdir(parents=True)
    for file in (ASSETS / "examples").glob("3-count.*"):
        shutil.copy(file, assets / "examples")
    monkeypatch.setattr("specllava.cli.commands.ASSETS", assets)
    monkeypatch.setattr("visual.site.static_site.readme", full)
    assert main(["site", "--output", str(tmp_path / "site")]) == 1
    assert [*tmp_path.iterdir()] == [assets]


def test_bad_races_are_refused_in_a_line_each_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, output = tmp_path / "own", tmp_path / "edition"
    command = ["site", "--output", str(output), "--races", str(own)]
    assert main(command) == 1
    assert "there is no race file (*.json)" in capsys.readouterr().err
    own.mkdir()
    race = synthetic_race(1)
    (own / "good.json").write_text(race_json(*race.values()))
    (own / "broken.json").write_text("{")
    (own / "pictured.json").write_text(race_json(*race.values(), "scene.png"))
    (own / "scene.png").write_bytes(b"no picture")
    (own / "odd\u202e.json").write_text(race_json(*race.values()))
    (own / "a directory.json").mkdir()
    assert main(command) == 1
    *lines, last = capsys.readouterr().err.splitlines()
    told = ["a directory.json", "broken.json", "'odd\\u202e.json'", "scene.png"]
    assert [next(name for name in told if name in line) for line in lines] == told
    assert "4 of 5 files refused" in last
    assert [*tmp_path.iterdir()] == [own]
