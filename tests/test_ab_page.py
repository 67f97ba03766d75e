"""A against B on many prompts, on the page: the run without a browser, then the card in one."""

from __future__ import annotations

import base64
import csv
import io
import json
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gradio as gr
import pytest
from support.browser import Visitor, assert_accessible
from support.dialogues import FakeChat
from support.lab_traces import FakeLab, synthetic_against
from support.visual_traces import FakeBackend
from test_ab_prompts import png, zipped

from specllava.core.config import DecodingConfig
from specllava.core.limits import Limits
from specllava.core.question import Question
from specllava.findings.comparison import PairedComparison
from specllava.findings.comparison_tables import records, summary_lines, to_csv, to_markdown
from visual.page.app_state import AppState
from visual.page.comparison import (
    FILE,
    KEPT,
    LINES,
    NAME,
    SCENES,
    ComparisonRequest,
    Comparisons,
    comparison_kind,
    open_pair_row,
)
from visual.page.comparison_prompts import LIST, MAX_PROMPTS, file_prompts
from visual.page.dialogue import Dialogues
from visual.page.pictures import Picture
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import Update, run_updates
from visual.player.recorded import recorded_race

A, B = DecodingConfig(rule="chain"), DecodingConfig()
PICTURE = Picture(seed=1)
ROWS = "[...document.querySelectorAll('.against-result tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
DONE = "!document.querySelector('.against-files').hidden"


def run(
    lab: FakeLab, requests: RunRequests | None = None, kept: Comparisons | None = None, **wanted: Any
) -> Iterator[Update]:
    requests = requests or RunRequests()
    settings = wanted.pop("settings", {})
    asked = {"source": SCENES, "lines": "", "scenes": 3, "uploaded": (), "a": {"rule": "chain"}} | wanted
    requests.request(("me", NAME), RunRequest(PICTURE, "", settings, ComparisonRequest(**asked)))
    state = AppState(Mock(), lab=lambda: lab, requests=requests)
    return run_updates(requests, comparison_kind(state, kept or Comparisons()), ("me", NAME))


def notes(updates: Iterator[Update]) -> list[str]:
    return [json.loads(note)["text"] if note else "" for _, note in updates]


def finding(prompts: list[str]) -> PairedComparison:
    *_, found = synthetic_against([Question(text) for text in prompts], len(prompts), A, B)
    return found


def test_the_table_is_that_of_the_findings() -> None:
    for count in (1, 2, 7, MAX_PROMPTS):
        *_, (value, note) = run(FakeLab(), scenes=count)
        view = json.loads(value)
        found = finding([row["prompt"] for row in view["rows"]])
        expected = records(found)
        for row, other in zip(view["rows"], expected, strict=True):
            assert row | {"image": None} == other | {"image": None}
        assert view["lines"] == summary_lines(found) and note == ""
        assert {column[1] for column in view["columns"]} <= expected[0].keys()


def test_files_are_those_of_the_findings() -> None:
    *_, (value, _) = run(FakeLab(), source=LINES, lines="One?\nTwo?")
    files, found = json.loads(value)["files"], finding(["One?", "Two?"])
    assert files["csv"] == to_csv(found) and files["md"] == to_markdown(found)
    assert [row["prompt"] for row in csv.DictReader(io.StringIO(files["csv"]))] == ["One?", "Two?"]
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(files["zip"]))) as archive:
        assert archive.namelist() == ["001.json", "002.json"]
        for name, row in zip(archive.namelist(), found.rows, strict=True):
            race = recorded_race(name, archive.read(name))
            assert race.a is not None and race.b is not None
            assert len(race.a.trace.steps) == row.a.target_passes and len(race.b.trace.steps) == row.b.target_passes


def test_rows_come_one_by_one_with_progress() -> None:
    said = notes(run(FakeLab(), scenes=3))
    assert said[1:] == ["0 of 3 prompts", "1 of 3 prompts", "2 of 3 prompts", "3 of 3 prompts", ""]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"source": LINES, "lines": " \n"}, "there is no prompt"),
        ({"source": LINES, "lines": "a\n" * (MAX_PROMPTS + 1)}, f"more than {MAX_PROMPTS} prompts"),
        ({"source": SCENES, "scenes": 0}, "0 scenes"),
        ({"source": SCENES, "scenes": 1e9}, "1000000000 scenes"),
        ({"source": FILE}, "upload a file with prompts first"),
        ({"a": {"depth": 0}}, "Please change the settings: depth = 0"),
        ({"settings": {"depth": 0}}, "Please change the settings: depth = 0"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(wanted: dict[str, Any], words: str) -> None:
    last = notes(run(FakeLab(), **wanted))[-1]
    assert words in last and "\n" not in last


class Endless(FakeLab):
    """Every question takes for ever; ``step`` is called at each step."""

    def __init__(self, step: Any = lambda count: None) -> None:
        super().__init__()
        object.__setattr__(self, "step", step)

    def compare(self, *asked: Any) -> Generator[PairedComparison]:
        found = finding(["One?"])
        count = 0
        try:
            while True:
                count += 1
                self.step(count)  # type: ignore[attr-defined]
                yield found
        finally:
            self.asked.append("closed")


def test_stop_ends_it_between_two_steps_and_keeps_the_rows() -> None:
    requests = RunRequests()
    lab = Endless(lambda count: count == 4 and requests.stop(("me", NAME)))
    *_, (value, note) = run(lab, requests)
    assert lab.asked == ["closed"]
    assert json.loads(note)["text"] == "Stopped. The prompts that are finished stay here."
    assert len(json.loads(value)["rows"]) == 1 and json.loads(value)["files"]["csv"]


def test_it_does_not_run_for_ever() -> None:
    lab = Endless()
    assert notes(run(lab, RunRequests(Limits(seconds_per_run=1e-9))))[-1].startswith("Stopped after 0 seconds.")
    assert lab.asked == ["closed"]


# --- pairs that are opened --------------------------------------------------------------------------------------------


def opened(kept: Comparisons, given: Any, requests: RunRequests | None = None) -> tuple[Any, ...]:
    state = AppState(Mock(), requests=requests or RunRequests())
    return open_pair_row(state, kept, gr.EventData(None, {"given": given}), "me")


def test_a_row_opens_both_of_its_runs() -> None:
    kept, requests = Comparisons(), RunRequests()
    *_, (value, _) = run(FakeLab(), kept=kept, source=LINES, lines="One?\nTwo?")
    name = json.loads(value)["id"]
    race = RunRequest(PICTURE, "", {})
    requests.request(("me", "race"), race)
    picture, address, question, frames, note = opened(kept, [name, 1], requests)
    run_frame = json.loads(frames[0])
    assert (picture, question, race.state) == (PICTURE, "Two?", "left")
    assert "Prompt 2 is open in the player above" in note
    assert {"against", "a_name", "b_name"} <= run_frame.keys() and run_frame["picture"] == address
    assert (run_frame["a_name"], run_frame["b_name"]) == ("rule chain", "rule entropy")


def test_no_follow_up_goes_on_from_the_dialogue_before_a_row_that_was_opened() -> None:
    dialogues = Dialogues(lambda turns: FakeChat(FakeBackend(), turns))
    asked = ("me", PICTURE, "What?", DecodingConfig(max_new_tokens=8))
    list(dialogues.begin(*asked, follow=False)[0])
    kept, state = Comparisons(), AppState(Mock(), dialogues=dialogues)
    *_, (value, _) = run(FakeLab(), kept=kept, source=LINES, lines="One?")
    row = gr.EventData(None, {"given": [json.loads(value)["id"], 0]})
    assert open_pair_row(state, kept, row, "you")[2] == "One?"
    assert dialogues.edit("me", 0)[0] == "What?", "another visitor's row"
    open_pair_row(state, kept, row, "me")
    with pytest.raises(ValueError, match="two answers to go on from"):
        dialogues.begin(*asked, follow=True)


@pytest.mark.parametrize("given", [None, [], ["x", 0], "x", [7, 0], [None, None], {"a": 1}])
def test_a_row_that_is_not_there_is_refused(given: Any) -> None:
    *_, note = opened(Comparisons(), given)
    assert json.loads(note)["kind"] == "error"


@pytest.mark.parametrize("number", [-1, 2, True, 0.0, "0", None])
def test_a_number_that_is_no_row_is_refused(number: Any) -> None:
    kept = Comparisons()
    kept.keep("name", finding(["One?", "Two?"]), ())
    *_, note = opened(kept, ["name", number])
    assert "no such row" in json.loads(note)["text"]


def test_only_the_latest_comparisons_are_kept() -> None:
    kept = Comparisons()
    for number in range(KEPT + 3):
        kept.keep(str(number), finding(["One?"]), ())
        kept.keep("3", finding(["One?"]), ())
    for number in (0, 1, 2):
        with pytest.raises(ValueError, match="no longer kept"):
            kept.pair(str(number), 0)
    with pytest.raises(ValueError, match="no such row"):
        kept.pair("3", 9)


# --- in a browser -----------------------------------------------------------------------------------------------------


def test_the_table_is_sorted_a_row_opens_and_a_phone_need_not_scroll(visit: Visitor, tmp_path: Path) -> None:
    tab = visit()
    tab.wait("document.querySelector('#against .lab-run').disabled === false")
    tab.page.click("#against .lab-run")
    tab.wait(DONE)
    rows = tab.page.evaluate(ROWS)
    found = finding([row[1] for row in rows])
    assert [row[2] for row in rows] == [f"{row.a.tau:.2f}" for row in found.rows]
    assert [row[3] for row in rows] == [f"{row.b.tau:.2f}" for row in found.rows]
    assert len(rows) == 5 and tab.text(".against-lines").splitlines()[:-1] == summary_lines(found)
    for key, column in (("tau_b", 3), ("passes_a", 5), ("prompt", 1)):
        tab.page.click(f"[data-key={key}]")
        up = [row[column] for row in tab.page.evaluate(ROWS)]
        tab.page.click(f"[data-key={key}]")
        down = [row[column] for row in tab.page.evaluate(ROWS)]
        read = str.casefold if key == "prompt" else float
        assert up == sorted(up, key=read) and [*map(read, down)] == sorted(map(read, up), reverse=True)
        assert tab.page.evaluate("document.activeElement.dataset.key") == key
    assert tab.page.get_attribute("th:has([data-key=prompt])", "aria-sort") == "descending"
    first = tab.page.evaluate(ROWS)[0]
    tab.page.locator(".against-result td button").first.press("Enter")
    tab.wait(f"document.querySelector('.origin').textContent.includes('prompt {first[0]} of a comparison')")
    tab.wait("!document.querySelector('.versus-result').hidden")
    tab.wait("Math.abs(document.querySelector('.player .race').getBoundingClientRect().top) < 200")
    said = f"Prompt {first[0]} is open in the player above"
    tab.wait(f"document.querySelector('#against').textContent.includes('{said}')")
    assert tab.page.input_value("#question textarea") == first[1]
    taus = "[...document.querySelector('.versus-result tbody tr').cells].map((cell) => cell.textContent)"
    assert tab.page.evaluate(taus)[1:3] == first[2:4]
    for kind, name in (("csv", "csv"), ("md", "md"), ("zip", "zip")):
        with tab.page.expect_download() as download:
            tab.page.click(f"#against [data-file={kind}]")
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.suffix == f".{name}" and path.stat().st_size
    assert len(zipfile.ZipFile(path).namelist()) == 5
    tab.page.set_viewport_size({"width": 375, "height": 800})
    tab.wait("document.documentElement.scrollWidth <= 375")
    assert_accessible(tab.page, "#against")


def test_settings_are_taken_a_file_is_read_and_hostile_lines_are_text(visit: Visitor, tmp_path: Path) -> None:
    rows = [{"prompt": "A red one?", "image": "a.png"}, {"prompt": "A blue one?", "image": "b.png"}]
    path = zipped(tmp_path, {LIST: "\n".join(map(json.dumps, rows)), "a.png": png(1), "b.png": png(2)})
    assert len(file_prompts(path)) == 2
    tab = visit()
    sides = "[...document.querySelectorAll('.side span')].map((side) => side.textContent)"
    tab.wait(f"{sides}[0].includes('chain rule') && {sides}[1].includes('entropy rule')")
    tab.page.get_by_role("button", name="Take the present settings as A").click()
    tab.wait(f"{sides}[0].includes('entropy rule')")
    tab.page.get_by_label("A file").check()
    tab.page.wait_for_selector("#prompts-file")
    tab.page.set_input_files("#against input[type=file]", str(path))
    tab.wait("document.querySelector('#against').textContent.includes('2 prompts are ready.')")
    tab.page.click("#against .lab-run")
    tab.wait(DONE)
    assert [row[1] for row in tab.page.evaluate(ROWS)] == ["A red one?", "A blue one?"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{")
    tab.page.set_input_files("#against input[type=file]", str(bad))
    tab.wait("document.querySelector('#against').textContent.includes('line 1 is no JSON')")
    hostile = ['<img src=x onerror="window.hacked=1">', "${6*7}"]
    tab.page.get_by_label("Lines about the present picture").check()
    tab.page.fill(".against-lines textarea", "\n".join(hostile))
    tab.page.click("#against .lab-run")
    tab.wait(f"{ROWS}.map((row) => row[1]).join() === {json.dumps(','.join(hostile))} && {DONE}")
    assert tab.page.evaluate("window.hacked") is None
