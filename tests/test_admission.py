"""What one request, or one address, may cost: decided before gradio reads it, and what fails costs one line."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from support.visual_traces import FakeBackend, synthetic_recorded
from test_api import Site

from specllava.config import MIB, Limits
from visual.page.admission import AT_ONCE, Admission
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.request_bodies import MAX_FILES, MAX_SESSION

ROOT = Path(__file__).resolve().parents[1]
FILE = {"path": "/tmp/gradio/a/a.png", "meta": {"_type": "gradio.FileData"}}
BOUNDARY = "-" * 40
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> gr.Blocks:
    """The page, built and not served; it knows no session."""
    races = synthetic_recorded(tmp_path_factory.mktemp("recorded"), 1)
    made = build_page(AppState(FakeBackend, races))
    made.state_holder = defaultdict(object)
    return made


def handler(page: gr.Blocks, kind: type, elem_id: str | None = None) -> int:
    """Number of a handler whose first input is of a kind."""
    return next(
        number for number, one in page.fns.items()
        if one.fn and one.inputs and isinstance(one.inputs[0], kind) and elem_id in (None, one.inputs[0].elem_id)
    )  # fmt: skip


def admitted(page: gr.Blocks, limits: Limits | None = None) -> TestClient:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("let in")(scope, receive, send)

    return TestClient(Admission(answer, page, limits or Limits()))


def call(number: int, data: Any, **more: Any) -> bytes:
    return json.dumps({"fn_index": number, "data": data, "session_hash": "me"} | more).encode()


# --- one request ------------------------------------------------------------------------------------------------------


def test_a_call_that_gradio_would_pay_too_much_for_does_not_reach_it(page: gr.Blocks) -> None:
    """Each of these took seconds of the event loop, or gigabytes; what a page and its visitors send is let in."""
    client, upload, text = admitted(page), handler(page, gr.UploadButton, "upload"), handler(page, gr.HTML)
    empty: list[Any] = [None] * len(page.fns[text].inputs)
    bodies: list[tuple[str, bytes, int]] = [
        *(("run/predict", call(upload, [[item] * 3000]), 400) for item in ({}, [], 0, "", FILE)),
        ("run/predict", call(upload, [[FILE] * (MAX_FILES + 1)]), 400),
        ("call/v2/generate", json.dumps({"image": FILE, "more_images": [FILE] * MAX_FILES}).encode(), 400),
        ("run/predict", call(text, empty, event_data={"given": [[]] * 20_000}), 400),
        ("run/predict", call(text, [*empty[1:], "w" * 500_000]), 413),
        ("run/predict", b"[" * 1000 + b"]" * 1000, 400),
        ("run/predict", call(text, empty, event_data={"a": json.loads("[" * 40 + "]" * 40)}), 400),
        ("run/predict", call(text, empty, session_hash="s" * (MAX_SESSION + 1)), 400),
        ("run/predict", b"{" + b",".join(b'"%d":0' % number for number in range(40_000)) + b"}", 413),
        ("component_server", b"no JSON", 400),
        ("component_server", form(b"x" * MIB), 413),
        ("process_recording", form(b"x" * MIB), 413),
        ("run/predict", b"\xff\xfe", 400),
        ("cancel", b'{"fn_index": [1], "session_hash": "me"}', 200),
        ("cancel", b'{"session_hash": {"a": 1}}', 400),
        ("run/predict", call(upload, [[FILE] * 9]), 200),
        ("run/predict", call(text, [*empty[1:], "\U0001f600" * 20_000]), 200),
        ("run/predict", call(text, [*empty[1:], "," * 20_000]), 200),
        ("run/predict", call(text, empty, event_data={"given": list(range(4096))}), 200),
    ]
    for path, body, status in bodies:
        answer = client.post(f"/gradio_api/{path}", content=body)
        assert answer.status_code == status, (path, body[:100], answer.text)
        assert status == 200 or (len(answer.json()["detail"]) < 200 and "\n" not in answer.json()["detail"])


def test_the_bound_of_bytes_follows_the_longest_texts_that_handlers_take(page: gr.Blocks) -> None:
    for characters in (10, 20_000):
        client = admitted(page, Limits(prompt_characters=characters))
        most = httpx.codes.REQUEST_ENTITY_TOO_LARGE
        refused = client.post("/gradio_api/cancel", content=b"x" * MIB)
        assert refused.status_code == most
        bound = int(refused.json()["detail"].rsplit("at most ", 1)[1].split()[0].replace(",", ""))
        assert bound == 2**16 + 12 * max(characters, 20_000), "the page's own box takes 20,000 characters"


# --- one address ------------------------------------------------------------------------------------------------------


def test_an_address_begins_so_many_sessions_in_a_minute(page: gr.Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio makes all components anew for each name, whichever request bears it."""
    monkeypatch.setattr(page, "state_holder", defaultdict(object))
    client, number = admitted(page, Limits(sessions_per_minute=3)), handler(page, gr.UploadButton, "upload")

    def status(name: str | None) -> int:
        return client.post("/gradio_api/run/predict", content=call(number, [None], session_hash=name)).status_code

    assert [status(name) for name in ("a", "b", "a", "b")] == [200] * 4
    assert client.get("/gradio_api/heartbeat/a").status_code == 200
    assert client.get("/gradio_api/heartbeat/c").status_code == 200
    assert [status("d"), status(None), status("")] == [429, 400, 400]
    assert client.get("/gradio_api/heartbeat/d").status_code == 429
    assert client.get(f"/gradio_api/heartbeat/{'d' * 1000}").status_code == 400
    assert status("c") == 200, "a session that is there goes on"


def test_an_address_sends_so_many_events_and_uploads_in_a_minute(page: gr.Blocks) -> None:
    client = admitted(page, Limits(events_per_minute=2, uploads_per_minute=1))
    number = handler(page, gr.UploadButton, "upload")
    statuses = [client.post("/gradio_api/run/predict", content=call(number, [None])).status_code for _ in range(3)]
    assert statuses == [200, 429, 429], "one file is opened"
    assert client.post("/gradio_api/cancel", content=b"{}").status_code == 429
    assert [client.post("/gradio_api/upload", content=b"").status_code for _ in range(2)] == [200, 429]
    assert client.post("/gradio_api/queue/join", content=b"").status_code == 200, "runs are counted by themselves"


def test_an_address_has_few_files_opened_at_once_and_nothing_else_waits_for_them(page: gr.Blocks) -> None:
    running, most, over = [0], [0], asyncio.Event()
    number, other = handler(page, gr.UploadButton, "upload"), handler(page, gr.HTML)

    async def decode(scope: Scope, receive: Receive, send: Send) -> None:
        if json.loads((await receive())["body"])["fn_index"] == number:
            running[0] += 1
            most[0] = max(most[0], running[0])
            await over.wait()
            running[0] -= 1
        await PlainTextResponse("done")(scope, receive, send)

    async def crowd() -> None:
        site = Admission(decode, page, Limits())

        def ask(address: str, which: int) -> Any:
            transport = httpx.ASGITransport(site, client=(address, 1))
            client = httpx.AsyncClient(transport=transport, base_url="http://page")
            data = [None] * len(page.fns[which].inputs)
            return client.post("/gradio_api/run/predict", content=call(which, data))

        opened = [asyncio.create_task(ask(address, number)) for address in "a" * 10 + "b"]
        await asyncio.sleep(0.2)
        assert running == [AT_ONCE + 1], "and another address does not wait"
        assert (await asyncio.wait_for(ask("a", other), 5)).text == "done"
        over.set()
        assert {answer.text for answer in await asyncio.gather(*opened)} == {"done"}

    asyncio.run(crowd())
    assert most == [AT_ONCE + 1]


# --- uploads ----------------------------------------------------------------------------------------------------------


def form(*files: bytes, head: str = 'name="files"; filename="a.png"') -> bytes:
    parts = [f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + one for one in files]
    return b"\r\n".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def slowly(body: bytes) -> Iterator[bytes]:
    """Sent in chunks, so without a length."""
    return (body[at : at + 65536] for at in range(0, len(body), 65536))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("uploads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        made = Site(tmp_path_factory.mktemp("recorded"), Limits(upload_bytes=MIB, question_bytes=2 * MIB))
        yield made
        made.page.close()


def parts_left(site: Site) -> list[Path]:
    """Files of uploads that did not come to their end."""
    return [one for one in Path(site.page.app.uploaded_file_dir).glob("tmp*") if one.is_file()]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (form(*[b"x" * (MIB - 9)] * 4), 413),
        (form(b"x" * (MIB + 1)), 413),
        (form(*[b"x"] * (MAX_FILES + 1)), 400),
        (form(b"x" * MIB, head='name="files"'), 400),
        (form(b"x", head='name="other"; filename="a.png"'), 400),
        (form(b"x", head='filename="a.png"'), 400),
        (form(b"x", head='name="files"\r\nContent-DispositionX: form-data; name="files"; filename="a.png"'), 400),
        (form(b"x" * 100_000)[:-9], 400),
        (form(*[b"x"] * 9000, head='name="files"'), 400),
        (form(b"\r\n" * (MIB // 2 - 200)), 200),
        (form(b"x", b"y"), 200),
    ],
)
def test_an_upload_is_counted_whether_or_not_it_gives_its_length(
    small: Site, body: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for content in (body, slowly(body)):
        answer = small.http.post("upload", content=content, headers=FORM)
        assert answer.status_code == status, answer.text
        assert len(answer.text.splitlines()) == 1 and parts_left(small) == []
    assert "Traceback" not in "".join(capfd.readouterr())


def test_no_charset_hides_the_name_of_a_file(small: Site) -> None:
    sent_as = {"Content-Type": f"{FORM['Content-Type']}; charset=utf-16"}
    answer = small.http.post("upload", content=form(b"x"), headers=sent_as)
    assert answer.status_code == 400 and parts_left(small) == []


def test_requests_that_break_off_or_mean_nothing_leave_a_line_at_most(
    small: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    host, port = "127.0.0.1", int(small.address.rstrip("/").rsplit(":", 1)[1])
    for path, sent_as, body in (
        ("upload", FORM["Content-Type"], form(b"x" * 200_000)), ("run/predict", "application/json", b"{" * 9000),
        ("queue/join", "application/JSON", b"{" * 9000),
    ):  # fmt: skip
        for _ in range(5):
            with socket.create_connection((host, port)) as half:
                head = f"POST /gradio_api/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: {sent_as}\r\n"
                half.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
    asked = [("POST", "call/saved_page"), ("POST", "call/v2/nope"), ("GET", "queue/data?session_hash=nobody")]
    asked += [("GET", "call/compare/nobody"), ("GET", "call/v2/compare/nobody"), ("GET", "deep_link?session_hash=x")]
    with httpx.Client(base_url=f"{small.address}gradio_api/", timeout=30) as client:
        for method, path in asked * 20:
            client.request(method, path, content=b'{"data": []}' if method == "POST" else None)
        shown = client.get("queue/data", params={"session_hash": "nobody"}).text
        shouted = {"Content-Type": "application/JSON"}
        unknown = client.post("run/predict", content=b'{"fn_index": 999, "data": []}', headers=shouted)
    assert '"session_not_found":true' in shown and unknown.status_code == 400
    deadline = time.monotonic() + 10
    while parts_left(small) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert parts_left(small) == []
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed and len(printed) < 20 * len(asked) * 20, printed[:2000]


# --- a full disk ------------------------------------------------------------------------------------------------------

SERVED = """
import sys
sys.path[:0] = ["tests", "."]
import pathlib, time
from test_api import Site
site = Site(pathlib.Path(sys.argv[1]))
print(site.address, flush=True)
time.sleep(600)
"""


@contextmanager
def served_with(folder: Path, log: Path, largest: int | None = None) -> Iterator[str]:
    """Serve a page in a process of its own that keeps uploads in ``folder`` and writes no file beyond ``largest``."""

    def bounded() -> None:
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    recorded = log.parent / "recorded"
    recorded.mkdir()
    environment = os.environ | {"GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}
    command = [sys.executable, "-c", SERVED, str(recorded)]
    with log.open("w") as written, subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=written, text=True, preexec_fn=bounded
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def small_disk(folder: Path) -> Iterator[int | None]:
    """Make ``folder`` a disk of 2 MiB where this user may; elsewhere yield the size that a file is held to instead."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    try:
        yield None if mounted.returncode == 0 else MIB
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.night
def test_a_full_disk_costs_a_line_and_keeps_no_part_of_an_upload(tmp_path: Path) -> None:
    folder, log, png = tmp_path / "disk", tmp_path / "log", Path(ROOT / "assets/examples").glob("*.png")
    picture = next(iter(png)).read_bytes()
    with small_disk(folder) as largest, served_with(folder, log, largest) as address, httpx.Client() as client:
        client.timeout = httpx.Timeout(60)
        client.base_url = f"{address}gradio_api/"
        for _ in range(3):
            refused = client.post("upload", files={"files": ("a.png", os.urandom(3 * MIB))})
            assert refused.status_code == 507 and "disk is full" in refused.json()["detail"]
            assert not [one for one in folder.rglob("*") if one.is_file()]
        both = [("files", ("a.png", b"small")), ("files", ("b.png", os.urandom(3 * MIB)))]
        assert client.post("upload", files=both).status_code == 507
        assert not [one for one in folder.glob("tmp*") if one.is_file()]
        kept = client.post("upload", files={"files": ("a.png", picture)})
        assert kept.status_code == 200
        config = client.get(f"{address}config").json()
        ids = {part["props"].get("elem_id"): part["id"] for part in config["components"]}
        calls = [one for one in config["dependencies"] if one["backend_fn"]]
        opened = next(one["id"] for one in calls if one["inputs"] == [ids["upload"]])
        body = {"fn_index": opened, "data": [[FILE | {"path": kept.json()[0]}]], "session_hash": "me"}
        shown = client.post("run/predict", json=body)
        assert shown.status_code == 200 and "data:image" in shown.text
    said = log.read_text()
    assert "Traceback" not in said and said.count("\n") < 20, said[:2000]


# --- whom a proxy speaks for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_proxy_says_under_which_address_the_page_is_shown(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1" if trusted else "")
    site = Site(tmp_path)
    said = {"X-Forwarded-Host": "forged.example", "X-Forwarded-Proto": "https"}
    said["X-Gradio-Server"] = "http://other.example"
    try:
        for headers in (said, said | {"X-Forwarded-For": "203.0.113.1"}, said | {"X-Forwarded-For": "203.0.113.1:99"}):
            document = site.http.get(site.address, headers=headers).text
            believed = trusted and headers.get("X-Forwarded-For") == "203.0.113.1"
            assert ("https://forged.example" in document) is ("forged.example" in document) is believed
            assert "other.example" not in document
    finally:
        site.page.close()


def test_a_page_with_an_address_of_its_own_repeats_no_host(tmp_path: Path) -> None:
    site = Site(tmp_path, root_path="https://shown.example")
    try:
        document = site.http.get(site.address, headers={"Host": "forged.example"}).text
        assert "https://shown.example" in document and "forged.example" not in document
    finally:
        site.page.close()
