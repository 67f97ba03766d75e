"""Bodies that gradio could make nothing of, or would fetch a file for: refused in a line, before anybody asks."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from unittest.mock import AsyncMock

import gradio as gr
import httpx
import pytest
from support.odd_calls import odd_call
from test_api import Site

from specllava.config import Limits
from visual.page.request_bodies import FOREIGN_FILE, CallBodies


class Elsewhere(HTTPServer):
    """A host that counts who asks it for anything."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/picture.png"


class Listener(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Elsewhere)
        self.server.asked.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("recorded"))
    yield made
    made.page.close()


def refused_body(body: bytes, path: str) -> str:
    """Why a page whose handler 0 takes two texts, and handler 1 files, does not read a body; empty if it does."""
    with gr.Blocks() as page:
        first, second = gr.Textbox(max_length=100), gr.Textbox(max_length=100)
        first.submit(lambda *texts: None, [first, second], None)
        upload = gr.UploadButton(file_count="multiple")
        upload.upload(lambda paths: None, upload, None)
    try:
        CallBodies(page, Limits()).read(body, path)
    except ValueError as refusal:
        return str(refusal)
    return ""


def file_at(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize("name", ["compare", "generate", "compare_stream"])
def test_an_endpoint_takes_no_address(site: Site, elsewhere: Elsewhere, name: str) -> None:
    """gradio downloaded whatever it was, without a bound on its bytes."""
    image = file_at(elsewhere.address)
    for path, body in ((name, {"data": [image, "What?"]}), (f"v2/{name}", {"image": image, "question": "What?"})):
        answer = site.post(path, body)
        assert (answer.status_code, answer.json()) == (400, {"detail": FOREIGN_FILE})
    assert elsewhere.asked == []


@pytest.mark.parametrize("path", ["run/predict", "queue/join"])
def test_no_handler_of_the_page_does(site: Site, elsewhere: Elsewhere, path: str) -> None:
    for call in site.page.config["dependencies"]:
        if call["inputs"]:
            data: list[Any] = [[file_at(elsewhere.address)], *[None] * (len(call["inputs"]) - 1)]
            body = {"fn_index": call["id"], "data": data, "session_hash": "me"}
            answer = site.http.post(path, json=body)
            assert answer.status_code == 400
    assert elsewhere.asked == []


TYPES = (
    "application/JSON", "APPLICATION/json", "Application/Json; charset", "application/vnd.api+JSON", "a/x+json",
    'application/json; charset="utf-16"', "application/json;boundary=x", "text/json", "text/plain", "", "json", None,
    "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/octet-stream",
    "application/json, x",
)  # fmt: skip


@pytest.mark.parametrize("sent_as", TYPES)
def test_no_spelling_of_a_content_type_hides_an_address(
    site: Site, elsewhere: Elsewhere, sent_as: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio reads JSON of more spellings than one; here its own refusal of private addresses is out of the way."""
    monkeypatch.setattr("safehttpx.async_validate_url", AsyncMock(return_value="127.0.0.1"))
    image = file_at(elsewhere.address)
    handlers = site.page.fns.items()
    upload = next(number for number, one in handlers if one.inputs and isinstance(one.inputs[0], gr.UploadButton))
    calls: dict[str, Any] = {
        "call/generate": {"data": [image, "What?"]},
        "call/v2/generate": {"image": image, "question": "What?"},
        **{
            path: {"fn_index": upload, "data": [[image]], "session_hash": "me"}
            for path in ("run/predict", "run/upload", "api/predict/", "queue/join")
        },
    }
    for path, body in calls.items():
        text = json.dumps(body)
        twice = text.replace('"path":', '"path": "x.png", "path":')
        encoded = [text.encode(code) for code in ("utf-8", "utf-16", "utf-32-be", "utf-8-sig")]
        for content in (*encoded, twice.encode()):
            headers = [] if sent_as is None else [("Content-Type", sent_as), ("Content-Type", "text/plain")]
            answer = site.http.post(path, content=content, headers=headers)
            assert answer.status_code == 400, (path, content, answer.text)
    assert elsewhere.asked == []


@pytest.mark.parametrize("path", ["file={}", "file=%20{}", "file/{}", "proxy={}"])
def test_no_address_of_the_server_fetches_another(
    site: Site, elsewhere: Elsewhere, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio serves ``/file=`` and an address by fetching that."""
    monkeypatch.setattr("safehttpx.async_validate_url", AsyncMock(return_value="127.0.0.1"))
    for method in ("GET", "HEAD"):
        answer = site.http.request(method, f"{site.address}gradio_api/{path.format(elsewhere.address)}")
        assert answer.status_code == 400
    assert elsewhere.asked == []


def test_what_was_uploaded_here_is_read(site: Site) -> None:
    kind, found = site.told("v2/generate", {"image": site.uploaded(), "question": "What?"})
    assert kind == "complete" and found[0]["answer"]


@pytest.mark.parametrize(
    ("body", "foreign"),
    [
        (b'{"data": [{"path": "https://example.org/x"}]}', True),
        (b'{"data": [{"path": "\\u0068ttp://example.org/x"}]}', True),
        (b'{"data": [{"a": [[{"path": " http://example.org"}]]}]}', True),
        (b'{"data": ["http://example.org", {"url": "http://example.org", "path": "/tmp/gradio/x.png"}]}', False),
        (b'{"data": [{"path": 7}]}', False),
        (b"no JSON", False),
        (b"[" * 100_000, False),
    ],
)
def test_only_the_path_of_a_file_counts(body: bytes, foreign: bool) -> None:
    assert (refused_body(body, "/gradio_api/call/compare") == FOREIGN_FILE) is foreign


def test_no_depth_of_nesting_hides_one() -> None:
    nested = json.dumps({"path": "http://example.org"})
    for _ in range(200):
        nested = f'[{{"x": {nested}}}]'
    assert refused_body(nested.encode(), "/gradio_api/call/compare") == FOREIGN_FILE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fn_index": 999}, "there is no handler 999"),
        ({"fn_index": "3"}, "there is no handler '3'"),
        ({"fn_index": [3]}, "there is no handler [3]"),
        ({"fn_index": None}, "there is no handler None"),
        ({"data": ["x"]}, "handler 0 takes 2 values, not 1"),
        ({"data": [None] * 3}, "handler 0 takes 2 values, not 3"),
        ({"event_data": [1]}, "event_data is no object"),
        ({"session_hash": ""}, "needs a session_hash of 1 to 128"),
        ({"session_hash": 7}, "needs a session_hash of 1 to 128"),
        ({"session_hash": "x" * 129}, "needs a session_hash of 1 to 128"),
        ({}, ""),
    ],
)
def test_a_call_of_no_handler_or_of_no_session_is_refused_with_the_numbers(change: dict[str, Any], why: str) -> None:
    body = json.dumps({"fn_index": 0, "data": [1, 2], "session_hash": "me"} | change).encode()
    refused = refused_body(body, "/gradio_api/queue/join")
    assert why in refused and bool(refused) == bool(why)


def test_odd_calls_cost_no_stack_trace(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    """Who sends nonsense would fill the server's log with it."""
    source = random.Random(3)
    sent_as = {"Content-Type": "application/json"}
    inputs = {call["id"]: len(call["inputs"]) for call in site.page.config["dependencies"]}
    with httpx.Client(base_url=f"{site.address}gradio_api/") as client:
        answers: Counter[int] = Counter()
        for _ in range(300):
            body = json.dumps(odd_call(source, inputs)).encode()
            path = source.choice(("run/predict", "queue/join"))
            answers[client.post(path, content=body, headers=sent_as).status_code] += 1
    assert answers[400] > 100 and answers[200] > 5, answers
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed, printed[:3000]
