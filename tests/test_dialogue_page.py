"""Dialogues on the page: their files and links, and in a browser the list of turns, editing and saved pages."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.browser import FINISHED, Server, Visit, Visitor, assert_accessible, new_page
from support.dialogues import FakeChat
from support.visual_traces import FakeBackend, synthetic_race, synthetic_recorded
from test_bad_input import complaint
from test_files_page import saved

from specllava.race_file import dialogue_json, race_json
from specllava.pair import Pair
from visual.page.app_state import AppState
from visual.page.dialogue import Dialogues
from visual.player.link import follow_link
from visual.player.race_frames import race_frames
from visual.player.recorded import MAX_TURNS, read_recorded

EXAMPLES = Path(__file__).resolve().parents[1] / "assets" / "examples"

# ---------------------------------------------------------------------------------------------- files and links


def dialogue_file(folder: Path, change: Callable[[list[dict[str, Any]]], Any] | None = None) -> Path:
    """The shipped dialogue, changed before it is written beside its picture."""
    document = json.loads((EXAMPLES / "4-dialogue.json").read_text(encoding="utf-8"))
    if change:
        change(document["dialogue"])
    path = folder / "4-dialogue.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    (folder / "4-dialogue.png").write_bytes((EXAMPLES / "4-dialogue.png").read_bytes())
    return path


def test_the_shipped_dialogue_is_lossless_and_its_third_turn_is_about_what_was_said() -> None:
    race = read_recorded(EXAMPLES / "4-dialogue.json")
    assert len(race.turns) == 3
    assert race.pictures == [EXAMPLES / "4-dialogue.png"] * 3
    for number, turn in enumerate(race.turns):
        assert turn.target_only is not None and turn.target_only.token_ids == turn.lead.token_ids
        assert (turn.lead.prefill.reused_tokens > 100) == (number > 0)
        assert turn.lead.prefill.reused_tokens - turn.target_only.prefill.reused_tokens in (0, 1)
    assert race.turns[2].prompt.endswith(" it?") and "blue" in race.turns[2].lead.text


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_frames_of_a_dialogue_hold_all_its_turns_and_save_the_whole_of_it(shown: int, tmp_path: Path) -> None:
    race = read_recorded(EXAMPLES / "4-dialogue.json")
    run, *_, end = map(json.loads, race_frames(race, turn=shown, pictures=["data:,"] * 3))
    assert (run["turn"], len(run["turns"]), len(end["turns"])) == (shown, shown, 3)
    assert sorted(map(int, end["held"])) == [number for number in range(3) if number != shown]
    for number, frames in end["held"].items():
        other, last = json.loads(frames[0]), json.loads(frames[-1])
        assert (other["turn"], other["prompt"]) == (int(number), race.turns[int(number)].prompt)
        assert (other["dialogue"], last["kind"], last["file"]) == (run["dialogue"], "end", None)
    again = tmp_path / "again.json"
    again.write_bytes(gzip.decompress(base64.b64decode(end["file"])))
    assert [turn.lead for turn in read_recorded(again).turns] == [turn.lead for turn in race.turns]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda turns: turns.reverse(), "turn 1 was recorded as turn 3 of its dialogue"),
        (lambda turns: turns.pop(1), "turn 2 was recorded as turn 3"),
        (lambda turns: turns.extend(turns * 6), f"the dialogue has 21 turns, and 1 to {MAX_TURNS} can be shown"),
        (lambda turns: turns.clear(), "the dialogue has 0 turns"),
        (lambda turns: turns[1].clear(), "turn 2: it has neither a target_only nor a speculative lane"),
        (lambda turns: turns[2].update(more=1), "turn 3: 'more' is a key that no race file has"),
        (lambda turns: turns.append(3), "a dialogue is"),
    ],
)
def test_a_dialogue_that_is_none_is_refused_in_one_line(
    change: Callable[[list[dict[str, Any]]], Any], words: str, tmp_path: Path
) -> None:
    line = complaint(lambda: read_recorded(dialogue_file(tmp_path, change)))
    assert line.startswith("4-dialogue.json is not a recorded race: ") and words in line


def test_turns_are_bounded_together_for_all_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dialogue_file(tmp_path)
    nodes = [sum(len(step.tree) for step in turn.lead.steps) for turn in read_recorded(path).turns]
    monkeypatch.setattr("visual.player.recorded.MAX_NODES", sum(nodes) - 1)
    assert f"the dialogue's speculative has {sum(nodes)} tree nodes" in complaint(lambda: read_recorded(path))


@pytest.mark.parametrize(
    ("query", "turn", "show", "notice"),
    [
        ({}, 2, None, ""),
        ({"turn": "1"}, 0, None, ""),
        ({"turn": "2", "step": "1"}, 1, 0, ""),
        ({"turn": "9", "step": "99"}, 2, -1, ""),
        ({"turn": "x"}, 2, None, "The link asks for turn 'x'; turns are numbers from 1 to 3."),
    ],
)
def test_a_link_leads_to_a_turn_and_a_step_of_it(query: dict[str, str], turn: int, show: int, notice: str) -> None:
    race = read_recorded(EXAMPLES / "4-dialogue.json")
    link = follow_link({"example": "4-dialogue", **query}, [race])
    assert link is not None
    last = len(race.turns[turn].lead.steps) - 1
    assert (link.turn, link.show, link.notice) == (turn, last if show == -1 else show, notice)
    assert link.shown is race.turns[turn]


# ---------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def server(serve: Callable[[AppState], str], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The page over stand-ins, with the shipped dialogue as its second example."""
    backend = FakeBackend(pace=0.004)
    recorded = [*synthetic_recorded(tmp_path_factory.mktemp("recorded")), read_recorded(EXAMPLES / "4-dialogue.json")]
    dialogues = Dialogues(lambda turns: FakeChat(backend, turns))
    return Server(serve(AppState(lambda: backend, recorded, dialogues=dialogues)), backend)


def ask(tab: Visit, question: str, button: str = "#follow") -> None:
    tab.page.select_option(".speed", "1")
    tab.page.fill("#question textarea", question)
    tab.page.click(button)
    tab.wait(f"document.querySelector('.asked').textContent === {question!r} && {FINISHED}")
    tab.wait("!document.querySelector('#follow').disabled")


def rows(tab: Visit) -> list[str]:
    return [" ".join(row.split()) for row in tab.page.locator(".turns li").all_inner_texts()]


@pytest.mark.night
def test_a_visitor_asks_follow_ups_looks_back_edits_and_takes_the_dialogue_along(
    visit: Visitor, browser: Any, tmp_path: Path
) -> None:
    tab = visit()
    assert tab.page.locator(".dialogue").is_hidden()
    ask(tab, "What is it?", "#run")
    assert tab.page.locator(".dialogue").is_hidden()
    ask(tab, "And where?")
    ask(tab, "Why?")
    assert [row.split(" ")[0] for row in rows(tab)] == ["1", "2", "3"]
    assert "0 of 92 reused" in rows(tab)[0] and "20 of 112 reused" in rows(tab)[1] and "τ" in rows(tab)[2]
    assert tab.text(".dialogue-columns") == "turn 3: 132 columns, 40 reused, 92 read"

    tab.page.locator(".turn").nth(2).focus()
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Enter")  # by keyboard: the race of turn 2, with no word to the server
    tab.wait("document.querySelector('.asked').textContent === 'And where?'")
    assert tab.page.evaluate("document.activeElement.dataset.turn") == "1"
    assert tab.page.get_attribute(".turn >> nth=1", "aria-current") == "true"
    document = json.loads(saved(tab, "race", tmp_path).read_text(encoding="utf-8"))
    assert [race["speculative"]["prompt"] for race in document["dialogue"]] == ["What is it?", "And where?", "Why?"]
    page = saved(tab, "page", tmp_path)

    tab.page.click("[data-edit='1']")
    tab.wait("document.querySelector('#question textarea').value === 'And where?'")
    assert "Editing turn 2" in tab.text(".dialogue-note") and tab.page.locator(".replaced").count() == 2
    ask(tab, "And when?")
    assert len(rows(tab)) == 2 and "And when?" in rows(tab)[1] and not tab.text(".dialogue-note")
    tab.page.click("[data-edit='-2']")
    assert tab.page.locator(".dialogue").is_hidden()
    tab.page.fill("#question textarea", "Still there?")
    tab.page.click("#follow")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('no dialogue to go on with')")
    _reads_a_saved_dialogue(browser, page)


def _reads_a_saved_dialogue(browser: Any, path: Path) -> None:
    """A page of its own, dark and narrow: every turn can be looked at with no server."""
    page = new_page(browser, {"width": 375, "height": 800}, color_scheme="dark")
    tab = Visit(page)
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on("request", lambda request: tab.calls.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(".tree .main-svg")
    assert len(rows(tab)) == 3 and tab.text(".asked") == "Why?"
    assert page.locator("[data-edit]:visible").count() == 0
    page.click("[data-turn='0']")
    page.wait_for_selector(".turn[data-turn='0'][aria-current]")
    assert tab.text(".asked") == "What is it?" and "saved run" in tab.text(".origin")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert {call.split(":")[0] for call in tab.calls} <= {"file", "data", "blob"} and not tab.errors
    page.close()


@pytest.mark.night
def test_a_link_opens_a_turn_of_the_shipped_dialogue_on_a_phone(visit: Visitor) -> None:
    tab = visit(
        "?example=4-dialogue&turn=2&step=1", viewport={"width": 375, "height": 800},
        permissions=["clipboard-write", "clipboard-read"],
    )  # fmt: skip
    tab.wait("document.querySelector('.asked').textContent === 'What is on the left?'")
    assert len(rows(tab)) == 3 and "136 of 146 reused" in rows(tab)[1]
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    assert_accessible(tab.page)
    tab.page.click("[data-turn='2']")
    tab.wait("document.querySelector('.asked').textContent === 'And what colour is it?'")
    tab.page.click(".files summary")
    tab.page.click("[data-file=link]")
    tab.wait("document.querySelector('.menu-note').textContent.includes('clipboard')")
    link = parse_qs(urlsplit(tab.page.evaluate("navigator.clipboard.readText()")).query)
    assert (link["example"], link["turn"], "step" in link) == (["4-dialogue"], ["3"], True)


@pytest.mark.night
def test_a_dialogue_file_is_opened_whole_and_needs_a_picture_to_go_on(visit: Visitor, tmp_path: Path) -> None:
    lanes = [synthetic_race(seed) for seed in (1, 2)]
    races = []
    for number, race in enumerate(lanes):
        alone, drafted = (replace(race[lane], turn=number) for lane in ("target-only", "speculative"))
        races.append(race_json(alone, drafted))
    path = tmp_path / "talk.json"
    path.write_text(dialogue_json(races), encoding="utf-8")
    tab = visit()
    tab.page.set_input_files("input[accept*=json]", str(path))
    tab.wait("document.querySelector('.origin').textContent.includes('from talk.json')")
    assert len(rows(tab)) == 2
    tab.page.click("[data-turn='0']")
    tab.wait("document.querySelector('.turn').getAttribute('aria-current') === 'true'")
    tab.page.click("#follow")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('choose a picture first')")
    assert len(rows(tab)) == 2


@pytest.fixture(scope="module")
def toy_page(serve: Callable[[AppState], str], shipped: Callable[[str], Pair]) -> str:
    from app import _chat

    pair = shipped("float32")
    recorded = [read_recorded(EXAMPLES / "4-dialogue.json")]
    return serve(AppState(lambda: pair, recorded, dialogues=Dialogues(lambda turns: _chat(pair, turns))))


def test_the_toy_pair_goes_on_from_the_shipped_dialogue_and_reuses_what_it_read(toy_page: str, browser: Any) -> None:
    tab = Visit(new_page(browser, {"width": 1280, "height": 720}))
    tab.page.goto(toy_page)
    tab.page.wait_for_selector(".tree .main-svg")
    ask(tab, "Is it large or small?")
    ask(tab, "Is there a dog?")
    assert len(rows(tab)) == 5
    assert " 0 of " in rows(tab)[3] and " 0 of " not in rows(tab)[4]  # a recorded dialogue is read once, then kept
    tab.page.close()
