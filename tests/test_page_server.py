"""The page's side on the server, without a browser: which run counts, Stop, dialogues, files, settings; and its API."""

from __future__ import annotations

import gc
import json
import logging
import urllib.request
from dataclasses import replace
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from support.shipped_races import ASSETS
from support.visual_traces import SETTING

from specllava.config import DecodingConfig, Limits
from specllava.pair import Pair
from specllava.trace import NO_DRAFT
from visual.figures import Doubts
from visual.page import measure, run
from visual.page import state as page_state
from visual.page.api import checked_path
from visual.page.page import LOST, NONE_YET, Handlers
from visual.page.run import Asked, Bounded, draw_race, granted, lanes_config, lent_race, run_frames
from visual.page.serve import health
from visual.page.settings import CARDS, FIELDS, make_config, read_draft
from visual.page.state import Dialogue, PageState, Runs, opened_dialogue
from visual.player.frames import FrameList, race_frames
from visual.player.recorded import Recorded, recorded_race

PICTURE = ASSETS / "examples" / "1-describe.png"
SHORT = DecodingConfig(max_new_tokens=12)
VISITOR = SimpleNamespace(session_hash="me")


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a visitor is warned of."""
    lines: list[str] = []
    monkeypatch.setattr(gr, "Warning", lines.append)
    monkeypatch.setattr(gr, "Info", lines.append)
    return lines


@pytest.fixture
def page(state: PageState) -> PageState:
    """The page's state with runs and dialogues of its own."""
    return replace(state, runs=Runs(), caches=[])


def asked(page: PageState, question: str = "How many objects are there?", session: str = "me", **more: Any) -> Asked:
    return Asked(session, page.runs.ask(session), str(PICTURE), question, SHORT, **more)


def kinds(frames: list[str]) -> list[str]:
    return [json.loads(frame)["kind"] for frame in frames]


def default_settings() -> list[Any]:
    defaults = [info.default for info in FIELDS.values()]
    return [", ".join(map(str, one)) if isinstance(one, tuple) else one for one in defaults]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_what_the_target_says(page: PageState, pair: Pair, warned: list[str], caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "specllava.runs"):
        *_, frames = run_frames(page, asked(page))
    end = next(json.loads(frame) for frame in frames if '"kind":"end"' in frame)
    alone = pair.generate(PICTURE, "How many objects are there?", replace(SHORT, drafter="none"))
    assert json.loads(end["file"])["speculative"]["text"] == alone.text
    assert end["ending"] == "finished" and not warned and "me" not in page.runs._latest
    line = json.loads(caplog.records[-1].message)
    assert (line["run"], line["outcome"], line["tokens"]) == ("race", "finished", len(alone.token_ids))
    assert "objects" not in caplog.text


def test_a_newer_request_ends_the_older_and_only_of_that_visitor(page: PageState) -> None:
    older, other = asked(page), asked(page, session="you")
    running = run_frames(page, replace(older, config=DecodingConfig()))
    first = asked(page)
    assert list(running) == [] and page.runs.state("me", first.number) == "on"
    *_, frames = run_frames(page, other)
    assert kinds(frames)[-1] == "end"


@pytest.mark.parametrize("ending", ["stopped", "left", "deadline"])
def test_stop_and_the_deadline_keep_what_there_is_and_nobody_waits_for_a_run_that_is_left(
    page: PageState, pair: Pair, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, seen, seconds = page.runs.ask("me"), count(), count()

    def state() -> Any:
        if next(seen) == 6:
            {"stopped": page.runs.stop, "left": page.runs.ask}.get(ending, str)("me")
        return page.runs.state("me", number)

    events = pair.race(pair.lane(PICTURE, "Describe it.").with_target_only())
    bounded = Bounded(events, 20 if ending == "deadline" else 10**6, state)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    sent = list(draw_race(FrameList(live=True), pair.collect, bounded))
    assert bounded.outcome == ending and getgeneratorstate(events) == GEN_CLOSED
    ends = [json.loads(frame) for frames in sent for frame in frames if '"kind":"end"' in frame]
    assert [end["ending"] for end in ends] == ([] if ending == "left" else [ending])
    assert ending != "stopped" or ends[0]["headline"]["say"][0][1].startswith("Stopped after")


def test_a_failure_is_one_line_for_the_visitor_and_no_run_is_left(page: PageState, warned: list[str]) -> None:
    def broken(draft: str | None) -> Any:
        raise RuntimeError("a secret inside")

    bad = replace(page, backend=lambda: broken(None))
    assert list(run_frames(bad, asked(bad))) == []
    assert warned == [run.FAILED] and "me" not in bad.runs._latest
    assert list(run_frames(page, asked(page, question="x" * 30_000))) == []
    assert warned[-1].startswith("This cannot run: the question has more than 20,000 characters")
    gone = replace(asked(page), picture="/nowhere/gone.png")
    assert list(run_frames(page, gone)) == [] and warned[-1].startswith("This cannot run: ")


def test_a_pair_without_a_draft_says_so() -> None:
    info = replace(SETTING, draft=NO_DRAFT)
    config, absent = lanes_config(info, DecodingConfig())
    assert config.drafter == "none" and "has no draft" in str(absent)
    assert lanes_config(info, DecodingConfig(drafter="prompt-lookup"))[1] is None


# --- dialogues ------------------------------------------------------------------------------------------------------


def test_a_follow_up_goes_on_from_a_run_and_from_a_recorded_race(page: PageState, warned: list[str]) -> None:
    dialogue = Dialogue()
    list(run_frames(page, asked(page, dialogue=dialogue)))
    *_, frames = run_frames(page, asked(page, "What is on the left?", dialogue=dialogue))
    run = json.loads(frames[0])
    assert [question for question, _ in run["before"]] == ["How many objects are there?"]
    recorded = next(race for race in page.recorded if race.later)
    later = asked(page, "And behind it?", dialogue=opened_dialogue(recorded, []))
    *_, frames = run_frames(page, replace(later, picture=str(recorded.pictures[-1])))
    assert len(json.loads(frames[0])["before"]) == len(recorded.turns) and not warned


def test_a_follow_up_without_a_dialogue_is_refused(page: PageState, warned: list[str]) -> None:
    for dialogue, line in ((None, LOST), (Dialogue(), NONE_YET)):
        given = (VISITOR, page.runs.ask("me"), True, str(PICTURE), "And now?", dialogue, *default_settings())
        assert list(Handlers(page).run(*given)) == []
        assert warned[-1] == f"This cannot run: {line}" and "me" not in page.runs._latest


def test_caches_of_few_dialogues_are_kept(page: PageState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_state, "MOST_CACHES", 1)
    dialogues = [Dialogue(), Dialogue()]
    for dialogue in dialogues:
        list(run_frames(page, asked(page, dialogue=dialogue)))
    assert [len(one.chat._caches._engines) > 0 for one in dialogues if one.chat] == [False, True]
    *_, frames = run_frames(page, asked(page, "What is on the left?", dialogue=dialogues[0]))
    assert kinds(frames)[-1] == "end"
    dialogues.clear()
    gc.collect()
    assert [held() for held in page.caches] == [None]  # nobody's pictures and words outlast the visit


# --- what visitors open ---------------------------------------------------------------------------------------------


def test_recorded_races_open_by_name_and_turn_and_end_the_run_before(page: PageState) -> None:
    handlers, number = Handlers(page), page.runs.ask("me")
    event = SimpleNamespace(_data={"race": "4-dialogue", "turn": 0})
    frames, path, question, dialogue = handlers.opened(event, VISITOR)
    race = page.races["4-dialogue"]
    assert question == race.turns[0].prompt and path == str(race.pictures[0]) and dialogue.recorded is race
    assert json.loads(frames[0])["turn"] == 0 and page.runs.state("me", number) == "left"
    for odd in (None, {}, {"race": "<b>"}, {"race": ["x"], "turn": "y"}):
        with pytest.raises(gr.Error, match="There is no recorded run"):
            handlers.opened(SimpleNamespace(_data=odd), VISITOR)
    assert set(page.races) >= {race.name for lesson in page.lessons for race in lesson.races}


def test_an_upload_waits_for_its_question_and_a_bad_one_changes_nothing(page, warned, tmp_path) -> None:
    handlers = Handlers(page)
    good, bad = tmp_path / "photo.png", tmp_path / "bad.png"
    Image.new("RGB", (64, 48), "red").save(good)
    bad.write_bytes(b"no picture")
    frames, path, question, _ = handlers.uploaded(str(good), "What is this?", VISITOR)
    run = json.loads(frames[0])
    assert (len(frames), path, question) == (1, str(good), "What is this?")
    assert run["picture"].startswith("data:image/jpeg") and "nonsense" in run["waits"]
    assert all(isinstance(one, dict) for one in handlers.uploaded(str(bad), "", VISITOR))
    assert warned[-1].startswith("This file cannot be used: ")
    race = tmp_path / "race.json"
    race.write_text(ASSETS.joinpath("examples", "3-count.json").read_text())
    frames, path, question, _ = handlers.uploaded(str(race), "", VISITOR)
    assert json.loads(frames[0])["race"] is None and path is None
    small = Handlers(replace(page, limits=Limits(upload_bytes=10)))
    small.uploaded(str(good), "", VISITOR)
    assert "at most 10 are read: make it smaller" in warned[-1]


def test_a_new_scene_is_one_that_ships(page: PageState) -> None:
    frames, path, _, _ = Handlers(page).new_scene(VISITOR)
    assert Path(path).parent.name == "scenes" and json.loads(frames[0])["lanes"] == []


def test_which_words_needed_the_picture_is_measured_of_a_run(page: PageState, tiny: Pair, warned: list[str]) -> None:
    page = replace(page, backend=lambda: tiny)
    handlers, dialogue = Handlers(page), Dialogue()
    assert list(handlers.needed(VISITOR, handlers.asked(VISITOR), dialogue)) == []
    assert "it is measured of the first question" in warned[-1]
    given = (dict(zip(FIELDS, default_settings(), strict=True)) | {"max_new_tokens": 8}).values()
    *_, (frames, dialogue) = handlers.run(VISITOR, page.runs.ask("me"), False, str(PICTURE), "Hi", None, *given)
    *_, frames = handlers.needed(VISITOR, handlers.asked(VISITOR), dialogue)
    assert kinds(frames)[-1] == "grounding" and kinds(frames)[-2] == "end" and dialogue.frames == frames[:-1]
    hasty = Handlers(replace(page, limits=Limits(seconds_per_run=1e-9)))
    *_, frames = hasty.needed(VISITOR, hasty.asked(VISITOR), dialogue)
    assert json.loads(frames[-1])["words"] == [] and warned[-1].startswith("Stopped after 0 seconds.")
    late, left = (handlers.needed(VISITOR, handlers.asked(VISITOR), dialogue) for _ in range(2))
    next(left)
    page.runs.ask("me")
    assert list(late) == list(left) == []  # another run is on the stage


# --- settings -------------------------------------------------------------------------------------------------------


def test_controls_make_the_configuration_and_bounds_are_named() -> None:
    assert make_config(dict(zip(FIELDS, default_settings(), strict=True)), Limits()) == DecodingConfig()
    values = dict(zip(FIELDS, default_settings(), strict=True))
    typed = make_config(values | {"rule": "fixed", "branching": "2, 2, 1", "depth": 3.0}, Limits())
    assert typed.branching == (2, 2, 1) and typed.depth == 3
    for odd in (2.9, float("inf")):
        with pytest.raises(ValueError, match="depth"):
            make_config(values | {"depth": odd}, Limits())
    with pytest.raises(ValueError, match="nodes is 20, and at most 8 are allowed here"):
        make_config(values, Limits(nodes=8))
    for card in CARDS:
        assert make_config(values | dict(card.changes), Limits())
    assert read_draft("draft: EagleVLM") == "EagleVLM" and read_draft("model") is None
    assert make_config(values | {"drafter": "draft: EagleVLM"}, Limits()).drafter == "model"


# --- Measure --------------------------------------------------------------------------------------------------------


def test_compare_decodes_every_rule_on_every_scene(page: PageState) -> None:
    prompts = measure.questions("2 scenes", None, "", page)
    variants = measure.chosen_variants(page, "Rules", "depth", None, replace(SHORT, rule="chain"), None)
    rows = [found for found in measure.compared(variants, prompts) if found is not None][-1]
    assert {row.name for row in rows} >= {"entropy", "chain", "topk", "fixed", "sequoia"}
    for row in rows:
        assert len(row.runs) == len(row.alone) == 2
        assert all(a.token_ids == b.token_ids for a, b in zip(row.alone, row.runs, strict=True))
        passes = sum(len(run.steps) for run in row.runs)
        tokens = sum(len(run.token_ids) - 1 for run in row.runs)
        assert row.cells()[1] == f"{tokens / passes:.1f}" and row.cells()[-1] == "2 of 2"
    fastest = max(rows, key=lambda row: row.speed()[0])
    words = measure.comparison_words(rows, 3)
    assert f"by the clock {fastest.name} is ahead, {fastest.speed()[0]:.2f} times as fast" in words
    assert words.endswith(f"The tokens were the same in {2 * len(rows)} of {2 * len(rows)} runs, on 2 of 3 scenes.")
    with pytest.raises(ValueError, match="the last run had these very settings"):
        measure.chosen_variants(page, "Against the last run", "depth", None, SHORT, SHORT)


def test_a_comparison_that_fails_says_so_in_one_line(page: PageState, warned: list[str]) -> None:
    def broken() -> Pair:
        raise MemoryError

    with pytest.raises(ValueError, match="more than 20,000 characters"):
        next(measure.questions(measure.ON_QUESTION, None, "x" * 30_000, page))
    page, given = replace(page, backend=broken), ("Rules", "depth", measure.ON_QUESTION, *default_settings())
    assert list(measure._run(page, "me", page.runs.ask("me"), None, "What?", None, *given)) == []
    assert warned == [run.OUT_OF_MEMORY] and "me" not in page.runs._latest


def test_measure_shows_the_run_on_the_stage(page: PageState, monkeypatch: pytest.MonkeyPatch) -> None:
    race = page.races["1-describe"]
    views = measure.run_views(race_frames(race))
    words, _ = measure.doubt_views("entropy", {"chain": Doubts(())}, views.doubts)
    drafted = sum(step.tree.drafted for step in race.lead.steps)
    assert f"{drafted} guesses" in views.reach_words and words.startswith("Sure (up to 0.3 nats)")
    nodes = sum(len(step.tree) + (not step.bonus_unused) + len(step.pruned) for step in race.lead.steps)
    assert "Describe" in views.about and len(views.nodes) == nodes
    for at, turn in enumerate(page.races["4-dialogue"].turns):
        assert measure.run_views(race_frames(page.races["4-dialogue"], turn=at)).about.endswith(turn.prompt)
    with monkeypatch.context() as small:
        small.setattr("visual.player.recorded.MAX_TREE", 2)
        assert "It has no charts" in measure.run_views(race_frames(race)).about
    alone = race_frames(Recorded("r", None, race.target_only, None))
    assert measure.run_views([]).reach_words == measure.run_views(alone).reach_words == ""
    assert measure.Row("x", [race.lead], [race.target_only]).cells()[0] == "x"


# --- health and ZeroGPU ---------------------------------------------------------------------------------------------


def test_health_says_what_runs_and_that_nothing_can(page: PageState) -> None:
    page.loading.result()
    assert health(page.loading).status_code == 200 and b"ready" in bytes(health(page.loading).body)
    broken = PageState(lambda: (_ for _ in ()).throw(ValueError("no weights")))
    assert broken.loading.exception()
    assert health(broken.loading).status_code == 503


def test_a_lent_gpu_races_by_itself_and_is_asked_for_as_long_as_it_takes(page: PageState, pair: Pair) -> None:
    asked_for: list[Any] = []

    def gpu(duration: Any) -> Any:
        asked_for.append(duration)
        return lambda function: function

    lent = replace(page, lent=lent_race(pair, gpu, 10**6))
    longer = replace(asked(lent), config=DecodingConfig(max_new_tokens=400))  # half a minute is granted
    *_, frames = run_frames(lent, longer)
    assert "end" in kinds(frames) and asked_for == [granted]
    assert granted(None, "?", SHORT) == 7 and granted(None, "?", DecodingConfig(max_new_tokens=4000)) == 60


# --------------------------------------------------------------------------------------------------------------- API


QUESTION = "How many objects are there?"


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


@pytest.mark.parametrize("picture", [None, PICTURE])
def test_compare_gives_both_answers_and_the_race_file(client: Client, pair: Pair, picture: Path | None) -> None:
    options = {"rule": "chain", "max_new_tokens": 8}
    found = client.predict(picture and handle_file(picture), QUESTION, options, api_name="/compare")
    alone = pair.generate(picture, QUESTION, DecodingConfig(drafter="none", max_new_tokens=8))
    assert found["equal"] is True and found["target_only"]["passes"] == len(alone.steps)
    for lane in ("target_only", "speculative"):
        assert (found[lane]["answer"], found[lane]["ended"]) == (alone.text, alone.finish_reason)
        assert found[lane]["tokens"] == len(alone.token_ids)
    assert found["speculative"]["passes"] < len(alone.steps)
    race = recorded_race("found", json.dumps(found["trace"]).encode())
    assert race.lead.config.rule == "chain" and race.lead.text == alone.text


@pytest.mark.parametrize(
    ("question", "options", "line"),
    [
        ("", {}, "the question is empty"),
        ("x" * 20_001, {}, "the question has more than 20,000 characters"),
        ("Hi", {"rule": "forest"}, "rule = 'forest'"),
        ("Hi", {"nodes": 1000}, "nodes = 1000"),
        ("Hi", {"no": 1}, "there is no option 'no'"),
        ("Hi", [1], "names and values are expected"),
        ("Hi", {"drafter": "none"}, "drafts nothing here"),
        ("Hi", {"drafter": "draft: x"}, "there is no draft 'x'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(client: Client, question: str, options: Any, line: str) -> None:
    with pytest.raises(AppError) as refused:
        client.predict(None, question, options, api_name="/compare")
    assert line in str(refused.value) and "Traceback" not in str(refused.value)


def test_no_file_of_the_server_and_no_address_is_read(server: str, tmp_path: Path) -> None:
    """A bare path would name any file of the server: only what was uploaded, and is marked so, is opened."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(PICTURE.read_bytes())
    marked = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    address = {**marked, "path": "https://example.com/a.png"}
    for odd in ({"path": str(secret)}, marked, address, {"path": 3}, {}, "x", {"path": "x", "meta": "y"}):
        with pytest.raises(ValueError, match="no picture came"):
            checked_path(odd)
        body = json.dumps({"data": [odd, QUESTION, {}]}).encode()
        request = urllib.request.Request(
            f"{server}gradio_api/call/compare", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                event = json.load(answer)["event_id"]
            with urllib.request.urlopen(f"{server}gradio_api/call/compare/{event}") as answer:
                said = answer.read().decode()
        except urllib.error.HTTPError as refused:
            said = refused.read().decode()
        assert '"passes"' not in said, odd
    assert checked_path(None) is None


def test_the_endpoint_describes_itself(client: Client) -> None:
    named = client.view_api(return_format="dict")["named_endpoints"]
    assert set(named) == {"/compare"}
    assert [one["parameter_name"] for one in named["/compare"]["parameters"]] == ["image", "question", "options"]
