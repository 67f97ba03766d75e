"""What a request may cost, decided before gradio reads it: its bytes, its values, how often its address may ask.

Gradio parses a body and converts its values on the event loop that all visitors share. What would keep that loop, the
memory or the disk is refused here, in one line; nothing is ever fetched from an address that somebody gives.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from threading import Lock
from typing import Final

from gradio_client.utils import is_http_url_like
from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.config import MIB, Limits

FOREIGN_FILE: Final = "a file is named by an address on the web, which this server does not fetch: upload it"
BODILESS: Final = ("GET", "HEAD", "OPTIONS")
FORWARDED: Final = (b"x-forwarded-host", b"x-forwarded-proto", b"x-gradio-server")
FETCHES: Final = re.compile(r"/(file=|file/|proxy=)\s*https?:", re.IGNORECASE)  # what gradio fetches for a GET
WINDOW: Final = 60.0  # seconds in which requests of an address are counted
MAX_VALUES: Final = 30_000  # marks between values; a question may consist of commas
MAX_DEPTH: Final = 32
MAX_SESSION: Final = 128  # characters of the name that a page gives its session


class Rate:
    """Requests of one kind that addresses sent within the last minute.

    Args:
        what: is counted, in a refusal.
        most: of each address.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._begun: dict[str, deque[float]] = {}
        self._lock = Lock()

    def wait(self, address: str) -> int:
        """Count a request of an address. Return 0, or the seconds that it must wait; then it does not count."""
        now = time.monotonic()
        with self._lock:
            for one, begun in list(self._begun.items()):
                while begun and begun[0] <= now - WINDOW:
                    begun.popleft()
                if not begun:
                    del self._begun[one]
            begun = self._begun.setdefault(address, deque())
            if len(begun) >= self._most:
                return math.ceil(begun[0] + WINDOW - now)
            begun.append(now)
            return 0

    def refusal(self, wait: int) -> JSONResponse:
        line = f"{self._most:,} {self._what} came from your address within a minute, the most that are allowed"
        return JSONResponse({"detail": f"{line}: try again in {wait} seconds"}, 429, {"Retry-After": str(wait)})


class Admission:
    """ASGI middleware that refuses requests beyond a page's limits with one line of JSON, ``{"detail": …}``.

    Addresses are those that the server has, so a proxy has to be trusted to name its client. Whatever asks for a slot
    in the queue counts as a run, everything else with a body as an event.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._calls = RequestBodyLimitMiddleware(app, MIB)
        self._uploads = RequestBodyLimitMiddleware(app, limits.upload_bytes + MIB)
        self._app = app
        self._rates = {
            "runs": Rate("runs", limits.runs_per_minute), "uploads": Rate("uploads", limits.uploads_per_minute),
            "events": Rate("events", limits.events_per_minute),
        }  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        scope, path = without_forgeries(scope), scope["path"].rstrip("/")
        if scope["method"] in BODILESS:
            if FETCHES.search(path):
                return await _refuse(FOREIGN_FILE)(scope, receive, send)
            return await self._app(scope, receive, send)
        upload = path.endswith("/upload")
        kind = "uploads" if upload else "runs" if path.endswith("/queue/join") or "/call/" in path else "events"
        rate, address = self._rates[kind], (scope["client"] or ("",))[0]
        if wait := rate.wait(address):
            return await rate.refusal(wait)(scope, receive, send)
        if upload:
            return await self._uploads(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdecimal():
            return await _refuse("a request whose length is not given is not read", 411)(scope, receive, send)
        if int(length[:20]) > MIB:
            return await _refuse(f"the request has more than {MIB:,} bytes", 413)(scope, receive, send)
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return None
        if line := body_refusal(body):
            return await _refuse(line)(scope, receive, send)
        return await self._calls(scope, _again(body, receive), send)


def body_refusal(body: bytes) -> str:
    """Return why the body of a call is not let in; empty if it is."""
    marks = sum(map(body.count, (b",", b"[", b"{")))
    if marks > MAX_VALUES:
        return f"the body holds about {marks:,} values, and at most {MAX_VALUES:,} are read"
    try:
        document = json.loads(body) if body.strip() else None
    except RecursionError:
        return f"the body is nested too deep: at most {MAX_DEPTH} levels are read"
    except ValueError:  # UnicodeDecodeError among them
        return "the body is no JSON"
    left = [(document, 0)]
    while left:
        value, depth = left.pop()
        if depth > MAX_DEPTH:
            return f"the body is nested too deep: at most {MAX_DEPTH} levels are read"
        if isinstance(value, dict):
            path, session = value.get("path"), value.get("session_hash")
            if isinstance(path, str) and is_http_url_like(path.strip().lower()):
                return FOREIGN_FILE
            if not isinstance(session, str | None) or len(session or "") > MAX_SESSION:
                return f"a session_hash has at most {MAX_SESSION} characters"
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(one, depth + 1) for one in inner]
    return ""


def without_forgeries(scope: Scope) -> Scope:
    """Leave out a client's headers about the page's own address, unless a trusted proxy sends them.

    The server gives port 0 to an address that such a proxy named, which no connection has.
    """
    if scope["client"] and scope["client"][1] == 0:
        return scope
    return {**scope, "headers": [header for header in scope["headers"] if header[0] not in FORWARDED]}


def _refuse(line: str, status: int = 400) -> JSONResponse:
    return JSONResponse({"detail": line}, status)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a source that yields a body once more and then waits for the client to leave."""
    first: list[Message] = [{"type": "http.request", "body": body}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
