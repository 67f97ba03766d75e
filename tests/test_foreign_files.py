"""The server fetches nothing for a visitor: a file that lies elsewhere is refused before anybody asks for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from test_api import Site

from visual.page.foreign_files import REFUSAL, names_foreign_file


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


def file_at(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize("name", ["compare", "generate", "compare_stream"])
def test_an_endpoint_takes_no_address(site: Site, elsewhere: Elsewhere, name: str) -> None:
    """gradio downloaded whatever it was, without a bound on its bytes."""
    image = file_at(elsewhere.address)
    for path, body in ((name, {"data": [image, "What?"]}), (f"v2/{name}", {"image": image, "question": "What?"})):
        answer = site.post(path, body)
        assert (answer.status_code, answer.json()) == (400, {"detail": REFUSAL})
    assert elsewhere.asked == []


@pytest.mark.parametrize("path", ["run/predict", "queue/join"])
def test_no_handler_of_the_page_does(site: Site, elsewhere: Elsewhere, path: str) -> None:
    for call in site.page.config["dependencies"]:
        if call["inputs"]:
            data: list[Any] = [[file_at(elsewhere.address)], *[None] * (len(call["inputs"]) - 1)]
            body = {"fn_index": call["id"], "data": data, "session_hash": "me"}
            answer = httpx.post(f"{site.address}gradio_api/{path}", json=body)
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
    assert names_foreign_file(body) is foreign


def test_no_depth_of_nesting_hides_one() -> None:
    nested = json.dumps({"path": "http://example.org"})
    for _ in range(200):
        nested = f'[{{"x": {nested}}}]'
    assert names_foreign_file(nested.encode())
