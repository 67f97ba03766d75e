"""The page's side on the server, without a browser: what it keeps, for how long, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError

import gradio as gr
import httpx
import pytest
from gradio.route_utils import delete_files_created_by_app
from PIL import ExifTags, Image
from support.lab_traces import FakeLab
from support.scenes import scene
from support.served_page import free_port
from support.visitor import Handlers, Visitor, VisitorRun
from support.visual_traces import FakeBackend, synthetic_lessons, synthetic_recorded

from specllava.config import DRAFTER_CHOICES, RULE_CHOICES
from visual.page import replays as replays_module
from visual.page.app_state import AppState
from visual.page.lab import EXPERIMENTS, experiment_kind
from visual.page.layout import build_page
from visual.page.pictures import NoPicture, Picture, address_of
from visual.page.race import race_kind
from visual.page.replays import MAX_REPLAYS, RaceReplays, follow_address, open_race_file, race_values
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import run_updates
from visual.page.serving import SESSIONS, serve
from visual.page.uploads import read_upload
from visual.player.recorded import MAX_PROMPT_CHARACTERS, shorten_question
from visual.player.link import follow_link

INFOS = (*RULE_CHOICES.values(), *DRAFTER_CHOICES.values())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> AppState:
    races = synthetic_recorded(tmp_path_factory.mktemp("recorded"), 3)
    return AppState(FakeBackend, races, lessons=synthetic_lessons(races), lab=FakeLab)


@pytest.fixture(scope="module")
def served(site: AppState) -> Iterator[tuple[gr.Blocks, str]]:
    page = build_page(site)
    yield page, serve(page, "127.0.0.1", free_port(), site, block=False)
    page.close()


def posted(address: str, body: dict[str, Any]) -> Any:
    """The answer to a call without the queue."""
    data = json.dumps({"session_hash": "me"} | body).encode()
    url = f"{address}gradio_api/run/predict"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def said(notice: str) -> str:
    return str(json.loads(notice)["text"])


# --- what is kept, and for how long ---------------------------------------------------------------------------------


def test_pictures_of_examples_outlive_the_first_round_of_cache_cleaning(
    site: AppState, served: tuple[gr.Blocks, str]
) -> None:
    page, address = served
    assert page.delete_cache is not None
    icons = [part["props"]["icon"]["path"] for part in page.config["components"] if part["props"].get("icon")]
    assert icons == [str(race.image) for race in site.recorded]
    delete_files_created_by_app(page, -1)
    for icon in icons:
        assert urllib.request.urlopen(f"{address}gradio_api/file={icon}").status == 200


def test_a_bounded_number_of_sessions_is_held(served: tuple[gr.Blocks, str]) -> None:
    page, address = served
    assert page.state_session_capacity == SESSIONS <= 200
    for number in range(3):
        posted(address, {"fn_index": _replays(page)[0], "data": [], "session_hash": f"visitor {number}"})
    holder = page.state_holder
    holder.capacity = 2
    for number in range(3):
        holder[f"visitor {number}"]
    assert len(holder.session_data) == 2


def test_hours_of_cleaning_take_nothing_that_the_page_shows_or_runs_on(served: tuple[gr.Blocks, str]) -> None:
    """Three hours in fast-forward: runs, an upload, and whatever Gradio deletes every ten minutes."""
    page, address = served

    async def run() -> dict[str, tuple[int, ...]]:
        async with httpx.AsyncClient(timeout=60) as client:
            visitor = Visitor(address, client, Handlers.of((await client.get(f"{address}config")).json()))
            return (await visitor.run("What is this?")).token_ids

    first = asyncio.run(run())
    assert first
    for _ in range(3):
        files = {"files": ("picture.png", b"not a picture")}
        (uploaded,) = httpx.post(f"{address}gradio_api/upload", files=files).json()
        delete_files_created_by_app(page, -1)
        assert not Path(uploaded).exists()
        document = httpx.get(address).text + json.dumps(httpx.get(f"{address}config").json())
        named = set(re.findall(r"gradio_api/file=([^\"'?&$\\\\]+)", document)) - {""}  # $: made by the browser
        assert named and all(httpx.get(f"{address}gradio_api/file={name}").status_code == 200 for name in named)
        assert posted(address, {"fn_index": _replays(page)[0], "data": []})["data"]
        assert asyncio.run(run()) == first


def _replays(page: gr.Blocks) -> list[int]:
    """Numbers of the handlers that show an example or a lesson."""
    buttons = {p["id"] for p in page.config["components"] if "example" in p["props"].get("elem_classes", [])}
    return [d["id"] for d in page.config["dependencies"] if d["targets"] and d["targets"][0][0] in buttons]


def test_a_session_keeps_no_component_twice(served: tuple[gr.Blocks, str]) -> None:
    page, address = served

    async def runs() -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            visitor = Visitor(address, client, Handlers.of((await client.get(f"{address}config")).json()))
            for number in range(4):
                assert (await visitor.run(f"What? {number}")).token_ids
            return visitor.session

    session = page.app.state_holder.session_data[asyncio.run(runs())]
    assert set(session.blocks_config.blocks) <= set(page.blocks)
    assert set(session.config_values) <= set(page.blocks)


def test_nobody_comes_past_the_queue(served: tuple[gr.Blocks, str]) -> None:
    page, address = served
    queued = [(d["id"], len(d["inputs"])) for d in page.config["dependencies"] if d["queue"] and d["backend_fn"]]
    assert queued
    for number, values in queued:
        with pytest.raises(HTTPError, match="404"):
            posted(address, {"fn_index": number, "data": [None] * values})
    assert posted(address, {"fn_index": _replays(page)[0], "data": []})["data"]


def test_an_upload_is_decoded_once_and_kept_small(tmp_path: Path) -> None:
    file, orientation = tmp_path / "photo.jpg", Image.Exif()
    orientation[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (4000, 3000), "red").save(file, exif=orientation)
    picture, address, notice = read_upload([str(file)])
    assert notice == "" and address == address_of(picture) and picture.preview().size == (1008, 1344)
    file.unlink()
    assert picture.open() is picture.preview()
    assert hash(picture) != hash(Picture(upload=picture.open())), "Gradio tells states apart by their hash"


@pytest.mark.parametrize("path", [None, "/none.png", __file__])
def test_what_is_no_upload_changes_nothing(
    path: str | None, site: AppState, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    *parts, notice = read_upload(path and [path])
    assert all(part == gr.skip() for part in parts) and said(notice).startswith("This picture cannot be used: ")
    *parts, notice = open_race_file(site, path, "me")
    assert all(part == gr.skip() for part in parts) and said(notice).startswith("This file cannot be opened: ")
    assert path or (said(notice).endswith(": no file came") and not caplog.records)


def test_a_question_about_several_uploaded_files_is_about_all_of_them(served: tuple[gr.Blocks, str]) -> None:
    _, address = served
    config = httpx.get(f"{address}config").json()
    button = next(part["id"] for part in config["components"] if part["props"].get("elem_id") == "upload")
    calls = [one for one in config["dependencies"] if one["backend_fn"]]
    handler = next(one["id"] for one in calls if [button, "upload"] in one["targets"])
    files = []
    for size, colour in (((40, 30), "red"), ((20, 50), "green")):
        data = io.BytesIO()
        Image.new("RGB", size, colour).save(data, "PNG")
        files.append(("files", (f"{colour}.png", data.getvalue())))
    paths = httpx.post(f"{address}gradio_api/upload", files=files).json()

    async def asked() -> tuple[Any, VisitorRun]:
        async with httpx.AsyncClient(timeout=30) as client:
            visitor = Visitor(address, client, Handlers.of(config))
            given = [[{"path": path, "meta": {"_type": "gradio.FileData"}} for path in paths]]
            body = {"session_hash": visitor.session, "fn_index": handler, "data": given}
            changed = (await client.post(f"{address}gradio_api/run/predict", json=body)).json()["data"]
            return changed, await visitor.run("What is different?", picture=changed[0])

    (_, shown, notice), run = asyncio.run(asked())
    assert shown.startswith("data:image/jpeg;base64,") and said(notice).startswith("The models see these 2")
    assert run.race is not None and run.race["image"] == "40 x 30 pixels, 20 x 50 pixels"


# --- shown again ----------------------------------------------------------------------------------------------------


def test_a_race_is_drawn_once_however_often_it_is_shown(site: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    frames = replays_module.race_frames
    monkeypatch.setattr(replays_module, "race_frames", lambda *given: drawn.append("") or frames(*given))
    replays = RaceReplays(lambda *given: race_values(site, *given))
    race, lesson = site.recorded[0], site.lessons[0]
    first, again = replays.show(race), replays.show(race)
    assert len(drawn) == 1 and first[:-1] == again[:-1] and first[-1][1:] == again[-1][1:]
    runs = [json.loads(made[-1][0]) for made in (first, again)]
    assert runs[0] | {"id": ""} == runs[1] | {"id": ""}
    assert runs[0]["id"] != runs[1]["id"], "the player would take it for the run that it shows"
    others = replays.show(race, 2), replays.show(race, 2, lesson.words), replays.show(site.recorded[1])
    assert len(drawn) == 4 and len({tuple(made[-1][1:]) for made in (first, *others)}) == 3
    assert [json.loads(made[-1][0])["lesson"] for made in others] == [None, lesson.words, None]
    assert json.loads(others[0][-1][-1])["show"] == 2


def test_a_bounded_number_of_shown_races_is_held(site: AppState) -> None:
    made: list[int | None] = []

    def make(race: Any, step: int | None, lesson: Any, turn: Any) -> tuple[Any, ...]:
        made.append(step)
        return (['{"kind": "run"}'],)

    replays = RaceReplays(make)
    for step in range(3 * MAX_REPLAYS):
        replays.show(site.recorded[0], step)
        assert len(replays._made) <= MAX_REPLAYS
    assert made == list(range(3 * MAX_REPLAYS))


def test_a_link_shows_its_step(site: AppState) -> None:
    replays, query = RaceReplays(lambda *given: race_values(site, *given)), {"example": "race-1", "step": "3"}
    link = follow_link(query, site.recorded)
    assert link is not None
    *_, frames, notice = follow_address(site, replays, query)
    assert notice == "" and json.loads(frames[-1])["show"] == link.show == 2


# --- what is refused, in words --------------------------------------------------------------------------------------


def test_a_question_of_any_length_is_neither_kept_nor_run(site: AppState) -> None:
    question = shorten_question("why? " * 1_000_000)
    assert len(question) == MAX_PROMPT_CHARACTERS + 1 and shorten_question(None) == ""
    refused = "This cannot run: the question has more than 20,000 characters: shorten it"
    for kind in (race_kind(site), experiment_kind(AppState(FakeBackend, lab=FakeLab), EXPERIMENTS[0])):
        requests = RunRequests()
        requests.request(("me", kind.name), RunRequest(scene(), question, {}))
        ((value, notice),) = run_updates(requests, kind, ("me", kind.name))
        assert value is None and said(notice) == refused
        requests.request(("me", kind.name), RunRequest(scene(), "w" * MAX_PROMPT_CHARACTERS, {}))
        assert len(list(run_updates(requests, kind, ("me", kind.name)))) > 1


def test_no_picture_is_sent_where_none_was_chosen_or_the_model_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    race = FakeBackend.race
    monkeypatch.setattr(FakeBackend, "race", lambda *asked: shown.append(asked[1]) or race(*asked))
    for sees, picture in ((True, NoPicture()), (False, scene(3)), (True, scene(3))):
        requests, kind = RunRequests(), race_kind(AppState(lambda sees=sees: FakeBackend(sees=sees)))
        requests.request(("me", kind.name), RunRequest(picture, "What?", {}))
        *_, (frames, _) = run_updates(requests, kind, ("me", kind.name))
        assert json.loads(frames[-1])["ending"] == "finished"
    blank, blind, seen = shown
    assert blank == blind == () and seen.size == scene(3).open().size


# --- the chip -------------------------------------------------------------------------------------------------------


def test_the_chip_answers_at_once_and_beside_the_queue(tmp_path: Path) -> None:
    loaded = Event()

    def backend() -> FakeBackend:
        assert loaded.wait(60)
        return FakeBackend()

    page = build_page(AppState(backend, synthetic_recorded(tmp_path)))
    parts = {part["id"]: part for part in page.config["components"]}
    chips = [i for i, part in parts.items() if part["props"].get("elem_id") == "running"]
    fills = [d for d in page.config["dependencies"] if d["outputs"][:1] == chips]
    assert [d["targets"][0][1] for d in fills] == ["load", "tick"] and not any(d["queue"] for d in fills)
    timer = parts[fills[0]["outputs"][1]]
    assert timer["type"] == "timer" and not timer["props"]["active"]
    look = page.fns[fills[0]["id"]].fn
    assert look is not None
    value, again = look()
    assert value == gr.skip() and again.active
    loaded.set()
    deadline = time.monotonic() + 30
    while look()[1].active:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    value, again = look()
    assert json.loads(value)["state"] == "ready" and not again.active
