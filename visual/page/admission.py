"""What a request may cost, decided before gradio reads it: its bytes, its values, and how often its address may ask.

Before any handler of the page runs, Gradio parses a body, makes a session and converts values on the event loop that
all visitors share. What would keep that loop, the memory or the disk is refused here, in one line.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import re
import time
import traceback
from collections import deque
from contextlib import AbstractAsyncContextManager, nullcontext
from textwrap import shorten
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

import gradio as gr
from gradio.route_utils import FnIndexInferError
from gradio.server_messages import UnexpectedErrorMessage
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.config import MIB, Limits
from visual.page.request_bodies import (
    FOREIGN_FILE,
    CallBodies,
    UploadBody,
    check_session,
    remove_partial_files,
)
from visual.page.runs import is_awaited

ENVELOPE: Final = MIB  # bytes of an upload around its files
AT_ONCE: Final = 2  # calls of one address that open uploaded files; further ones wait
BODILESS: Final = ("GET", "HEAD", "OPTIONS")
FORWARDED: Final = (b"x-forwarded-host", b"x-forwarded-proto", b"x-gradio-server")
FETCHES: Final = re.compile(r"/(file=|file/|proxy=)\s*https?:", re.IGNORECASE)  # what gradio fetches for a GET
HEARTBEAT: Final = re.compile(r"/heartbeat/([^/]*)$")
CALL: Final = re.compile(r"/call/(?:v2/)?[^/]+/([^/]+)$")
FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRONG_CALL: Final = (KeyError, TypeError, FnIndexInferError)
WINDOW: Final = 60.0  # seconds, in which runs of an address are counted
log = logging.getLogger("specllava.page")


class TooManyRuns(ValueError):
    """Error of an address that begins more runs than it may; ``wait`` is how many seconds until it may again."""

    def __init__(self, what: str, most: int, wait: int) -> None:
        super().__init__(
            f"{most:,} {what} came from your address within a minute, the most that are allowed:"
            f" try again in {wait} second{'' if wait == 1 else 's'}"
        )
        self.wait = wait


class RunRate:
    """Runs that addresses began within the last minute. Handlers share it across threads.

    Args:
        what: is counted, in a refusal.
        most: of each address.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._begun: dict[str, deque[float]] = {}
        self._lock = Lock()

    def begin(self, address: str) -> None:
        """Count a run of an address.

        Raises:
            TooManyRuns: it has begun as many as it may; this one does not count.
        """
        now = time.monotonic()
        with self._lock:
            self._forget(now - WINDOW)
            begun = self._begun.setdefault(address, deque())
            if len(begun) >= self._most:
                raise TooManyRuns(self._what, self._most, math.ceil(begun[0] + WINDOW - now))
            begun.append(now)

    def _forget(self, before: float) -> None:
        """Forget runs of longer ago, and addresses of which none is left."""
        for address, begun in list(self._begun.items()):
            while begun and begun[0] <= before:
                begun.popleft()
            if not begun:
                del self._begun[address]


class Refusal(Exception):
    """Raised for a request that is not let in, with its answer."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.status_code)
        self.answer = answer


class Admission:
    """ASGI middleware that refuses requests beyond a page's limits with one line of JSON, ``{"detail": …}``.

    Clients are distinguished by the address that the server has for them, so a proxy has to be trusted to name its
    client. Whatever asks for a slot in the waiting line counts as a run, everything else as an event.

    Args:
        page: whose handlers are called.
    """

    def __init__(self, app: ASGIApp, page: gr.Blocks, limits: Limits) -> None:
        self._app, self._page = app, page
        self._bodies = CallBodies(page, limits)
        self._most_uploaded = limits.question_bytes + ENVELOPE
        self._runs = RunRate("runs", limits.runs_per_minute)
        self._events = RunRate("events", limits.events_per_minute)
        self._sessions = RunRate("new sessions", limits.sessions_per_minute)
        self._uploads = RunRate("uploads", limits.uploads_per_minute)
        self._openings = RunRate("opened uploads", limits.uploads_per_minute)
        self._making = asyncio.Lock()
        self._slots = WeakValueDictionary[str, asyncio.Semaphore]()  # of addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _without_forgeries(scope)
        try:
            body, slot = await self._admit(scope, receive)
        except ClientDisconnect:
            return
        except (Refusal, ValueError) as refusal:
            await _refuse(refusal)(scope, receive, send)
            return
        async with slot:
            if isinstance(slot, nullcontext) or not await Request(scope, receive).is_disconnected():
                await self._answer(scope, body, send)

    async def _admit(self, scope: Scope, receive: Receive) -> tuple[Receive, AbstractAsyncContextManager[Any]]:
        """Return the source of the body, and a context to hold until the answer.

        Raises:
            Refusal: with the answer.
            TooManyRuns: the address asked too often.
            ValueError: why the request is refused, in one line.
            ClientDisconnect: the body broke off.
        """
        path, address = scope["path"].rstrip("/"), (scope["client"] or ("",))[0]
        if scope["method"] in BODILESS:
            await self._check_stream(path, scope["query_string"], address)
            return receive, nullcontext()
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if path.endswith("/gradio_api/upload"):
            _check_length(length, self._most_uploaded)
            self._uploads.begin(address)
            return UploadBody(receive, headers.get("content-type", ""), self._most_uploaded).receive, nullcontext()
        most = self._bodies.most_bytes
        _check_length(length, most)
        if not length.isdecimal() and scope["method"] == "POST":
            raise _refusal(411, "a request whose length is not given is not read: send Content-Length")
        rate = self._runs if path.endswith("/queue/join") or "/call/" in path else self._events
        rate.begin(address)
        body = await _read(receive, most)
        slot = await self._check_body(body, path, address) if body else nullcontext()
        return _again(body, receive), slot

    async def _check_body(self, body: bytes, path: str, address: str) -> AbstractAsyncContextManager[Any]:
        """Check the body of a call and count its requests. Return a context to hold until the answer."""
        call = self._bodies.read(body, path)
        name = call.get("session_hash") if isinstance(call, dict) else None
        if name:
            await self._open_session(name, address)
        if path.endswith("/queue/join") or not self._bodies.reads_files(call):
            return nullcontext()
        self._openings.begin(address)
        slots = self._slots.get(address) or asyncio.Semaphore(AT_ONCE)
        self._slots[address] = slots
        return slots

    async def _check_stream(self, path: str, query: bytes, address: str) -> None:
        """Check a request without a body: it fetches nothing, and listens to a session or a call that is there."""
        if FETCHES.search(path):
            raise ValueError(FOREIGN_FILE)
        if path.endswith("/gradio_api/deep_link"):
            raise _refusal(404, "this page keeps no links: its address says what it shows")
        values = parse_qs(query.decode("latin-1"))
        if heartbeat := HEARTBEAT.search(path):
            self._events.begin(address)
            check_session(heartbeat[1])
            await self._open_session(heartbeat[1], address)
        elif path.endswith("/upload_progress"):
            self._events.begin(address)
            check_session(values.get("upload_id", [""])[0])
        elif path.endswith("/queue/data"):
            if not is_awaited(self._page, values.get("session_hash", [""])[-1]):
                message = UnexpectedErrorMessage(message="there is no such session", session_not_found=True)
                raise Refusal(Response(f"data: {message.model_dump_json()}\n\n", media_type="text/event-stream"))
        elif (call := CALL.search(path)) and not is_awaited(self._page, call[1]):
            raise Refusal(Response('event: error\ndata: "there is no such call"\n\n', media_type="text/event-stream"))

    async def _open_session(self, name: str, address: str) -> None:
        """Count a session that is new, and let gradio make it: one at a time, and beside the event loop."""
        sessions = self._page.state_holder
        if name in sessions:
            return
        async with self._making:
            if name not in sessions:
                self._sessions.begin(address)
                await run_in_threadpool(sessions.__getitem__, name)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the page answer; what fails is answered, and logged, in one line."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:  # noqa: BLE001 - a request that fails costs one line
            remove_partial_files(error)
            status, line = answer_failure(scope["path"], error)
            if status != 400:
                log.error("%s %s: %s", scope["method"], shorten(scope["path"], 100), describe_failure(error))
            if not begun:
                await JSONResponse({"detail": line}, status)(scope, receive, send)


def _without_forgeries(scope: Scope) -> Scope:
    """Leave out a client's headers about the page's own address, unless a trusted proxy sends them.

    The server gives port 0 to an address that such a proxy named, which no connection has.
    """
    if scope["client"] and scope["client"][1] == 0:
        return scope
    return {**scope, "headers": [header for header in scope["headers"] if header[0] not in FORWARDED]}


def _check_length(length: str, most: int) -> None:
    if length.isdecimal() and int(length[:20]) > most:
        raise _refusal(413, f"the request has {int(length[:20]):,} bytes, at most {most:,} are read")


def _refuse(refusal: Refusal | ValueError) -> Response:
    """Return the answer to a request that is not let in."""
    if isinstance(refusal, Refusal):
        return refusal.answer
    if isinstance(refusal, TooManyRuns):
        return JSONResponse({"detail": str(refusal)}, 429, {"Retry-After": str(refusal.wait)})
    return JSONResponse({"detail": str(refusal)}, 400)


def _refusal(status: int, line: str) -> Refusal:
    return Refusal(JSONResponse({"detail": line}, status))


async def _read(receive: Receive, most: int) -> bytes:
    """Read a body, whatever its Content-Length."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > most:
            raise _refusal(413, f"the request has more than {most:,} bytes, which are the most that are read")
        if not message.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a source that yields a body once more and then waits for the client to leave."""
    first: list[Message] = [{"type": "http.request", "body": body}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def answer_failure(path: str, error: Exception) -> tuple[int, str]:
    """Return the status and the line that answer a request which failed; 500 is a defect, of here or of gradio."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return 507, "the server's disk is full: try again later"
    if "/call/" in path and isinstance(error, WRONG_CALL):
        return 400, shorten(f"there is no endpoint {error}" if isinstance(error, KeyError) else str(error), 200)
    return 500, "the server failed at this"


def describe_failure(error: Exception) -> str:
    """Return an error's type, words and position in one line of bounded length, for the log."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{shorten(f'{type(error).__name__}: {error}', 200)} ({last.filename}:{last.lineno})"


def check_early(page: gr.Blocks, endpoint: int) -> None:
    """Let gradio check a call's number of values and its files before the call waits; it answers 400 to odd ones.

    Args:
        endpoint: number of the handler, whose own checks come later.
    """
    handler = page.fns[endpoint]
    handler.validator = lambda *values: [None] * len(values)  # each of them may pass
