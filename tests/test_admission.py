"""What one request, or one address, may cost: decided before gradio reads it, in one line."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from concurrent.futures import Future
from typing import Any

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from specllava.config import MIB, Limits
from visual.page.serve import FILE_POLICY, MAX_DEPTH, MAX_VALUES, Admission, Around, body_refusal

CALL = {"fn_index": 3, "data": ["What?"], "session_hash": "me"}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body and the headers about the page's address that came through."""
    body = b""
    if scope["method"] == "POST":
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
    names = sorted(name.decode() for name, _ in scope["headers"] if name.startswith(b"x-"))
    await PlainTextResponse(f"{len(body)} {','.join(names)}")(scope, receive, send)


def client(**limits: Any) -> TestClient:
    return TestClient(Admission(echo, Limits(**limits)))


def post(made: TestClient, path: str, body: bytes | str, **headers: str) -> Any:
    return made.post(path, content=body, headers=headers)


def test_what_a_page_sends_is_let_in_whole() -> None:
    body = json.dumps(CALL)
    assert post(client(), "/gradio_api/queue/join", body).text.startswith(f"{len(body)} ")
    longest = json.dumps({**CALL, "data": [", " * 10_000]})
    assert post(client(), "/gradio_api/queue/join", longest).status_code == 200


@pytest.mark.parametrize("kind", ["application/json", "application/JSON; charset=latin-1", "text/plain", ""])
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"[" * 10_000, "nested too deep"),
        (b"[" + b"[]," * 20_000 + b"0]", f"at most {MAX_VALUES:,} are read"),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "nested too deep"),
        (b"{'no': json}", "the body is no JSON"),
        (b"\xff\xfe", "the body is no JSON"),
        (json.dumps({"data": [{"path": "https://example.com/a.png"}]}).encode(), "does not fetch: upload it"),
        (json.dumps({"data": [{"a": [{"path": "  HTTP://example.com/a.png"}]}]}).encode(), "does not fetch: upload it"),
        (json.dumps({**CALL, "session_hash": "x" * 129}).encode(), "at most 128 characters"),
        (json.dumps({**CALL, "session_hash": ["x"]}).encode(), "at most 128 characters"),
    ],
)
def test_a_body_that_would_cost_too_much_is_refused_however_it_is_called(body: bytes, line: str, kind: str) -> None:
    answer = post(client(), "/gradio_api/run/predict", body, **{"Content-Type": kind})
    assert answer.status_code == 400 and line in answer.json()["detail"]


def test_a_body_of_a_megabyte_costs_little() -> None:
    for body in (b"[" * MIB, b"[]," * (MIB // 3), b'{"a":' * (MIB // 5)):
        began = time.process_time()
        assert body_refusal(body)
        assert time.process_time() - began < 0.5


def test_bodies_are_bounded_and_have_a_length() -> None:
    made = client(upload_bytes=1000)
    assert post(made, "/gradio_api/run/predict", b" " * (MIB + 1)).status_code == 413
    parts = iter([b"{}", b" " * 10])
    assert made.post("/gradio_api/run/predict", content=parts).status_code == 411
    assert post(made, "/gradio_api/upload", b"x" * (MIB + 1001)).status_code == 413
    assert made.post("/gradio_api/upload", content=iter([b"x" * 2 * MIB])).status_code == 413
    assert post(made, "/gradio_api/upload", b"x" * 500).status_code == 200


def test_an_address_asks_so_often_in_a_minute_and_no_more() -> None:
    made = client(runs_per_minute=2, uploads_per_minute=1)
    answers = [post(made, "/gradio_api/queue/join", json.dumps(CALL)).status_code for _ in range(3)]
    assert answers == [200, 200, 429]
    refused = post(made, "/gradio_api/call/v2/compare", "{}")
    assert refused.status_code == 429 and 0 < int(refused.headers["Retry-After"]) <= 60
    assert "the most that are allowed: try again in" in refused.json()["detail"]
    assert [post(made, "/gradio_api/upload", b"x").status_code for _ in range(2)] == [200, 429]
    assert post(made, "/gradio_api/run/predict", "{}").status_code == 200


def test_nothing_is_fetched_from_an_address_that_somebody_gives() -> None:
    for path in ("/gradio_api/file=https://example.com/x", "/gradio_api/proxy=http://example.com", "/file/ https://a.b"):
        assert client().get(path).status_code == 400
    assert client().get("/gradio_api/file=/tmp/x.png").status_code == 200


def test_only_a_trusted_proxy_says_under_which_address_the_page_is_shown() -> None:
    forged = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Gradio-Server": "http://evil"}
    assert client().get("/", headers=forged).text == "0 "
    proxied = TestClient(Admission(echo, Limits()), client=("10.0.0.1", 0))
    assert proxied.get("/", headers=forged).text == "0 x-forwarded-host,x-forwarded-proto,x-gradio-server"


def around(page: str) -> TestClient:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = HTMLResponse(page) if scope["path"] == "/" else PlainTextResponse("x")
        await response(scope, receive, send)

    return TestClient(Around(answer, Future()))


def test_a_document_runs_the_scripts_that_it_was_sent_with_and_no_other() -> None:
    made = around("<html><script>let a = 1;</script><script src='x.js'>b</script></html>")
    policy = made.get("/").headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src")).split()
    assert scripts == ["script-src", "'self'", "'unsafe-eval'", f"'sha256-{digest}'"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    other = made.get("/file.txt").headers
    assert other["content-security-policy"] == FILE_POLICY and other["x-content-type-options"] == "nosniff"


def test_health_and_a_heads_question_are_answered_without_the_page() -> None:
    made = around("<html></html>")
    assert made.get("/health").json() == {"status": "loading"}
    assert made.head("/").status_code == 200 and made.head("/").text == ""
