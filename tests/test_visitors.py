"""What a visitor chose is neither another's nor replaced without a word, however many others there are."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
from PIL import Image
from support.browser import FINISHED, Visit, visits
from support.dialogues import FakeChat
from support.lab_traces import FakeLab
from support.page_handlers import Page
from support.served_page import free_port
from support.visitor import Visitor, VisitorRun
from support.visual_traces import FakeBackend, synthetic_recorded

from specllava.config import Limits
from visual.page import run_requests
from visual.page.app_state import AppState
from visual.page.dialogue import LOST as LOST_DIALOGUE
from visual.page.dialogue import Dialogues
from visual.page.layout import build_page
from visual.page.pictures import UNKNOWN, LostPicture, MediaList, Picture
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import LATE
from visual.page.serving import SESSIONS, serve
from visual.page.uploads import ENTRY_BYTES, LOST, UploadStore

COLOURS = ("red", "green", "blue", "white")
SIDE = 1000
CROWD = Limits(  # all visitors share one address here
    runs_per_minute=10**6, calls_per_minute=10**6, events_per_minute=10**6, sessions_per_minute=10**6,
    uploads_per_minute=10**6,
)  # fmt: skip
PICTURE_BYTES = 3 * SIDE**2


def upload(colour: str = "red", side: int = 10) -> Picture:
    return Picture(upload=Image.new("RGB", (side, side), colour))


def lost(picture: Any) -> str:
    """The line of a picture that is no longer kept; both ways to look at it say so."""
    assert isinstance(picture, LostPicture)
    for look in (picture.open, picture.preview):
        with pytest.raises(ValueError, match=picture.line):
            look()
    return picture.line


# --- the store ------------------------------------------------------------------------------------------------------


def test_uploads_are_kept_for_their_bytes_and_those_unused_for_longest_go_first() -> None:
    store = UploadStore(3 * (PICTURE_BYTES + ENTRY_BYTES))
    pictures = [upload(colour, SIDE) for colour in COLOURS]
    references = [store.reference(colour, one) for colour, one in zip(COLOURS[:3], pictures, strict=False)]
    assert store.picture(references[0]) is pictures[0], "used, so no longer the first to go"
    references.append(store.reference(COLOURS[3], pictures[3]))
    assert [store.picture(one) is picture for one, picture in zip(references, pictures, strict=True)] == [
        True, False, True, True,
    ]  # fmt: skip
    assert lost(store.picture(references[1])) == LOST
    assert store.nbytes <= 3 * (PICTURE_BYTES + ENTRY_BYTES)


def test_tiny_uploads_of_a_crowd_are_bounded_too() -> None:
    store = UploadStore(100 * ENTRY_BYTES)
    references = [store.reference(f"{number}", upload(side=1)) for number in range(1000)]
    assert 0 < sum(not isinstance(store.picture(one), LostPicture) for one in references) < 100
    assert store.nbytes <= 100 * ENTRY_BYTES


def test_a_visitor_holds_one_question_s_pictures() -> None:
    store = UploadStore()
    first, second = (store.reference("me", upload(colour)) for colour in COLOURS[:2])
    assert isinstance(store.picture(first), LostPicture) and isinstance(store.picture(second), Picture)


def test_who_left_makes_room_first_and_may_come_back_until_then() -> None:
    store = UploadStore(2 * (PICTURE_BYTES + ENTRY_BYTES))
    mine, yours = (store.reference(session, upload(side=SIDE)) for session in ("me", "you"))
    store.leave("you")
    assert isinstance(store.picture(yours), Picture)
    store.leave("you")
    store.reference("third", upload(side=SIDE))
    assert isinstance(store.picture(mine), Picture) and isinstance(store.picture(yours), LostPicture)


def test_uploads_of_who_left_go_five_minutes_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("visual.page.uploads.time.monotonic", lambda: clock[0])
    store = UploadStore()
    mine, yours = (store.reference(session, upload()) for session in ("me", "you"))
    store.leave("you")
    for clock[0] in (299.0, 598.0):
        assert isinstance(store.picture(yours), Picture), "a page that was loaded anew uses it"
    clock[0] = 899.0
    store.leave("third")
    assert isinstance(store.picture(yours), LostPicture) and isinstance(store.picture(mine), Picture)
    assert store.nbytes == upload().nbytes + ENTRY_BYTES


def test_pictures_of_the_page_are_named_by_what_they_are_and_never_lost(tmp_path: Path) -> None:
    """Also by a server that was started anew: the browser's page is the old one."""
    files = [tmp_path / f"{colour}.png" for colour in COLOURS]
    for file, colour in zip(files, COLOURS, strict=True):
        Image.new("RGB", (4, 4), colour).save(file)
    before, after = UploadStore(0), UploadStore(0)
    before.share(files)
    names = [before.reference("me", Picture(file=str(file))) for file in files]
    after.share(reversed(files[1:]))
    for file, name in list(zip(files, names, strict=True))[1:]:
        picture = after.picture(name)
        assert picture is not None and picture.open() == Image.open(file).convert("RGB")
    assert lost(after.picture(names[0])) == UNKNOWN, "gone from the page: no other takes its place"
    assert before.nbytes == after.nbytes == 0


@pytest.mark.parametrize(
    "forged",
    ["picture:", "picture:x", "file:/etc/passwd", "file:", "scene:", "scene:train", "scene:train:-1", "scene:train:1e9",
     "scene:train:²", "scene:other:1", "scene:train:99999999999", ":", "x", 7, True, [], {}, {"path": "/etc/passwd"}],
)  # fmt: skip
def test_what_a_browser_makes_up_is_no_picture(forged: Any) -> None:
    store = UploadStore()
    store.reference("you", upload())
    assert isinstance(store.picture(forged), LostPicture)


def test_each_kind_of_upload_is_missed() -> None:
    store = UploadStore(ENTRY_BYTES)
    two = tuple(Image.new("RGB", (8, 8), colour) for colour in COLOURS[:2])
    for source in (MediaList(two), upload()):
        reference = store.reference("me", source)
        assert source.nbytes > 0 and store.picture(reference) is source
        store.reference("you", upload())
        assert lost(store.picture(reference)) == LOST


# --- through the server ---------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A served page with dialogues, and what visitors do there."""

    state: AppState
    blocks: gr.Blocks
    address: str
    page: Page = field(init=False)

    def __post_init__(self) -> None:
        self.page = Page.of(httpx.get(f"{self.address}config").json())

    def visitor(self, client: httpx.AsyncClient) -> Visitor:
        return Visitor(self.address, client, self.page.run)

    async def upload(self, visitor: Visitor, colour: str, size: tuple[int, int]) -> str:
        data = io.BytesIO()
        Image.new("RGB", size, colour).save(data, "PNG")
        files = {"files": ("a.png", data.getvalue())}
        sent = await visitor.client.post(f"{self.address}gradio_api/upload", files=files)
        number = self.page.part("upload")
        given = [[{"path": path, "meta": {"_type": "gradio.FileData"}} for path in sent.json()]]
        reference: str = (await visitor.call(self.page.handler(number, "upload"), given, number))[0]
        return reference

    async def click(self, visitor: Visitor) -> str:
        """Click on Run and never join the line. Return what is said of the runs before."""
        handlers = self.page.run
        outputs = await visitor.call(handlers.begin, handlers.inputs("What?", {}), handlers.button)
        texts = [json.loads(one)["text"] for one in outputs if isinstance(one, str) and one.startswith("{")]
        return next((text for text in texts if "before this one" in text), "")

    async def crowd(self, client: httpx.AsyncClient, count: int) -> None:
        """Let others open the page and look at an example, each in a session of a new name."""
        example = self.page.part("example")
        for _ in range(count):
            other = self.visitor(client)
            await other.call(self.page.handler(None, "load"), [])
            await other.call(self.page.handler(example, "click"), [], example)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    backend = FakeBackend(pace=0.002)
    races = synthetic_recorded(tmp_path_factory.mktemp("recorded"), 2)
    dialogues = Dialogues(lambda turns: FakeChat(backend, turns))
    store = UploadStore(2 * (PICTURE_BYTES + ENTRY_BYTES))
    state = AppState(
        lambda: backend, races, requests=RunRequests(CROWD), lab=FakeLab, dialogues=dialogues, uploads=store
    )
    blocks = build_page(state)
    yield Site(state, blocks, serve(blocks, "127.0.0.1", free_port(), state, block=False))
    blocks.close()


def pictured(run: VisitorRun) -> str:
    """The sizes of the pictures that a run's answer is about."""
    assert run.race is not None, run.notices
    last = run.race.get("dialogue", [run.race])[-1]
    return str(last["speculative"]["image"])


@pytest.mark.night
def test_what_a_visitor_chose_outlives_a_crowd_of_other_sessions(site: Site) -> None:
    async def runs() -> tuple[list[VisitorRun], list[Any]]:
        async with httpx.AsyncClient(timeout=60) as client:
            me = site.visitor(client)
            picture = await site.upload(me, "red", (40, 30))
            made = [await me.run("What is it?", picture=picture)]
            await site.crowd(client, SESSIONS + 5)
            assert me.session not in site.blocks.state_holder.session_data
            made.append(await me.run("And where?", picture=picture, trigger=site.page.part("follow")))
            edited = await me.call(site.page.handler(site.page.part("player"), "edit"), [], None, {"turn": 0})
            made.append(await me.run("What is it?", picture=edited[0]))
            return made, edited

    made, edited = asyncio.run(runs())
    assert [pictured(run) for run in made] == ["40 x 30 pixels"] * 3
    assert edited[2] == "What is it?"


def test_a_picture_that_made_room_for_others_is_missed_in_one_line_everywhere(site: Site) -> None:
    async def runs() -> list[VisitorRun]:
        async with httpx.AsyncClient(timeout=60) as client:
            me = site.visitor(client)
            picture = await site.upload(me, "red", (SIDE, SIDE))
            for colour in COLOURS[1:]:
                await site.upload(site.visitor(client), colour, (SIDE, SIDE))
            made = [await me.run("What is it?", picture=picture)]
            for name in ("lab-rules", "lab-image-ablation"):
                made.append(await me.run("What?", handlers=site.page.runs[name], picture=picture))
            return made

    made = asyncio.run(runs())
    assert [run.refused for run in made] == [f"This cannot run: {LOST}"] * len(made)
    assert not any(run.shown for run in made[:3])


def test_a_session_that_is_merely_named_costs_little_memory(site: Site) -> None:
    async def ask() -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            me = site.visitor(client)
            await me.run("What? " + "long " * 200)
            return me.session

    held = site.blocks.state_holder.session_data[asyncio.run(ask())]
    assert not held.config_values


def test_a_dialogue_that_is_no_longer_kept_is_missed_in_one_line(site: Site) -> None:
    async def runs() -> VisitorRun:
        async with httpx.AsyncClient(timeout=60) as client:
            me = site.visitor(client)
            await me.run("What is it?")
            assert site.state.dialogues is not None
            site.state.dialogues.leave(me.session)
            return await me.run("And where?", trigger=site.page.part("follow"))

    assert asyncio.run(runs()).refused == f"This cannot run: {LOST_DIALOGUE}"


# --- clicks that never join the waiting line ------------------------------------------------------------------------


def test_clicks_that_never_join_the_line_are_before_nobody_and_are_forgotten(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_requests, "SECONDS_TO_JOIN", 0.2)

    async def click() -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            for _ in range(20):
                await site.click(site.visitor(client))
            await asyncio.sleep(0.3)
            return await site.click(site.visitor(client))

    assert asyncio.run(click()) == ""
    assert len(site.state.requests._latest) == 1
    time.sleep(0.3)
    site.state.requests.forget_absent(())
    assert site.state.requests.empty


def test_a_click_that_joins_the_line_too_late_is_told_so_and_one_in_the_line_is_not_forgotten(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_requests, "SECONDS_TO_JOIN", 0.2)

    async def runs() -> tuple[list[str], list[VisitorRun]]:
        async with asyncio.timeout(60), httpx.AsyncClient(timeout=60) as client:
            slow, patient, late = (site.visitor(client) for _ in range(3))
            running = asyncio.create_task(slow.run("slowly: hold the line"))
            while site.state.requests.latest((slow.session, "race")) is None:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
            waiting = asyncio.create_task(patient.run("What?"))
            await asyncio.sleep(0.4)
            told = await site.click(late)
            await asyncio.sleep(0.4)
            other = site.visitor(client)
            after = await site.click(other)
            site.state.requests.cancel_session(other.session)
            site.state.requests.stop((slow.session, "race"))
            body = {"session_hash": late.session, "fn_index": late.handlers.compute, "data": []}
            joined = await client.post(f"{site.address}gradio_api/queue/join", json=body)
            refused = await late.follow(0.0, joined.json()["event_id"])
            return [told, after], [await running, await waiting, refused]

    told, (_, patient, late) = asyncio.run(runs())
    assert [line.split(" run")[0] for line in told] == ["2 other", "2 other"], "the slow one and the patient one"
    assert patient.token_ids and not late.token_ids
    assert late.notices == (LATE,)


def test_of_clicks_that_came_too_late_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(run_requests, "time", SimpleNamespace(monotonic=lambda: clock.now))
    requests = RunRequests()
    for number in range(3 * run_requests.MOST_LATE):
        request = RunRequest(None, "", {})
        request.asked = 0.0
        requests.request((f"{number}", "race"), request)
    clock.now = 100.0
    requests.forget_absent({"0"})
    assert requests.is_on(("0", "race")) and len(requests._latest) == 1
    assert len(requests._late) == run_requests.MOST_LATE
    assert requests.is_late((f"{3 * run_requests.MOST_LATE - 1}", "race")) and not requests.is_late(("1", "race"))
    requests.cancel_session(f"{3 * run_requests.MOST_LATE - 2}")
    assert len(requests._late) == run_requests.MOST_LATE - 2


# --- in the browser -------------------------------------------------------------------------------------------------

PICTURED = "document.querySelector('#picture img').src"
SAID = "document.querySelector('#notice .notice').textContent"


def choose(tab: Visit, path: Path) -> None:
    before = tab.page.evaluate(PICTURED)
    with tab.page.expect_file_chooser() as chooser:
        tab.page.click("#upload")
    chooser.value.set_files(str(path))
    tab.wait(f"{PICTURED} !== {json.dumps(before)}")


@pytest.mark.night
def test_the_page_holds_its_picture_when_the_server_forgot_the_session(
    site: Site, browser: Any, tmp_path: Path
) -> None:
    """Picture and the draft's other picture are the browser's own."""
    path, again = tmp_path / "mine.png", tmp_path / "again.png"
    Image.new("RGB", (60, 20), "red").save(path)
    Image.new("RGB", (60, 20), "green").save(again)
    with visits(browser, site.address) as open_page:
        tab = open_page()
        choose(tab, path)
        site.blocks.state_holder.session_data.clear()
        tab.run("What is it?")
        tab.wait(FINISHED)
        document = saved(tab, "race", tmp_path)
        assert json.loads(document.read_text(encoding="utf-8"))["image"] == "60 x 20 pixels"
        tab.page.click("#lab-image-ablation .lab-run")
        tab.wait("document.querySelector('#lab-image-ablation .lab-result').hidden === false")
        with ThreadPoolExecutor(1) as thread:  # playwright's own loop runs in this one
            for _ in range(3):
                thread.submit(asyncio.run, _upload(site)).result()
        tab.run("And now?")
        tab.wait(f"{SAID}.includes({json.dumps(LOST)})")
        choose(tab, again)
        tab.run("And again?")
        tab.wait("document.querySelector('.asked').textContent === 'And again?' && " + FINISHED)


def saved(tab: Visit, kind: str, folder: Path) -> Path:
    tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click(f"[data-file={kind}]")
    path = folder / f"saved-{kind}"
    download.value.save_as(path)
    return path


async def _upload(site: Site) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        await site.upload(site.visitor(client), "blue", (SIDE, SIDE))
