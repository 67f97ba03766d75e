"""Serving of a page that was built: Gradio's launch, ``/health``, security headers, and what a request may cost.

Gradio compiles templates and scripts of its HTML components in the browser (``new Function``), so the policy allows
``unsafe-eval``; and it styles elements one by one, so it allows inline styles. Inline scripts go by their hash.

Gradio parses a body and converts its values on the event loop that all visitors share. What would keep that loop, the
memory or the disk is refused before, in one line; nothing is ever fetched from an address that somebody gives.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import socket
import time
from collections import deque
from concurrent.futures import Future
from threading import Lock
from typing import Any, Final

import gradio as gr
from gradio_client.utils import is_http_url_like
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.config import MIB, Limits
from visual.page.state import PageState
from visual.player.saved_page import FAVICON, STATIC, static_text

SESSIONS: Final = 100  # of which Gradio keeps what it changed; a page of a forgotten one loses nothing but its dialogue
FRAMES: Final = "'self' https://huggingface.co https://*.hf.space"  # who may show the page in a frame
INLINE: Final = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
FILE_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"  # of what is no document, should it be opened as one
# A picture of the first stop stands in its place until the scripts run; `benchmarks.screenshot --poster` made it.
HEAD: Final = """<meta name="color-scheme" content="light dark">
<style>
@media (min-width: 1101px) {
  gradio-app:not(:has(.stage.alive))::before {
    content: ""; position: fixed; inset: 0; z-index: 9; pointer-events: none;
    background: #FAFAF8 url("gradio_api/file=%(static)s/poster-light.webp") top center / 100%% auto no-repeat;
  }
}
@media (min-width: 1101px) and (prefers-color-scheme: dark) {
  gradio-app:not(:has(.stage.alive))::before {
    background: #101316 url("gradio_api/file=%(static)s/poster-dark.webp") top center / 100%% auto no-repeat;
  }
}
</style>"""


def serve(page: gr.Blocks, host: str, port: int, state: PageState, block: bool = True, root_path: str = "") -> str:
    """Serve the page to everybody who can reach ``host`` and return its address.

    Args:
        block: return only when the server has been stopped.
        root_path: path or address under which a proxy shows the page.

    Raises:
        ValueError: nothing can listen there; one line.
    """
    try:  # Gradio's own line names its variables and not our options
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError) as error:
        advice = "end what listens there, or choose another --port or --host"
        raise ValueError(f"the page cannot be served on port {port} of {host}: {advice}") from error
    limits = state.limits
    layers = [Middleware(Around, loading=state.loading), Middleware(Admission, limits=limits)]
    page.queue(max_size=limits.waiting, api_open=False)  # nobody comes past the one slot for what computes
    _, address, _ = page.launch(
        server_name=host, server_port=port, root_path=root_path, prevent_thread_lock=True, quiet=not block,
        show_error=False, ssr_mode=False, run_history=False, enable_monitoring=False, footer_links=[],
        state_session_capacity=SESSIONS, max_file_size=limits.upload_bytes, favicon_path=str(FAVICON),
        theme=page_theme(), css=static_text("stage.css") + static_text("page.css"),
        head=HEAD % {"static": STATIC.as_posix()},
        app_kwargs={"middleware": layers},
    )  # fmt: skip
    state.launched.set()
    if block:
        page.block_thread()
    return address


def page_theme() -> gr.themes.Base:
    """Make the theme, whose colours page.css sets; a web font would be a request to another host."""
    fonts = ["-apple-system", "BlinkMacSystemFont", "Segoe UI", "Roboto", "Liberation Sans", "Arial", "sans-serif"]
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.gray, radius_size=gr.themes.sizes.radius_lg,
        font=fonts, font_mono=["ui-monospace", "Consolas", "monospace"],
    )  # fmt: skip


def health(loading: Future[Any]) -> JSONResponse:
    """Answer ``/health``: loading is no illness; models that cannot be loaded are 503."""
    fresh = {"cache-control": "no-store"}
    if not loading.done():
        return JSONResponse({"status": "loading"}, headers=fresh)
    if loading.exception():
        return JSONResponse({"status": "failed"}, 503, headers=fresh)
    info = loading.result().info
    running = {"pair": info.pair, "device": info.device, "dtype": info.dtype}
    return JSONResponse({"status": "ready"} | running, headers=fresh)


def page_policy(document: bytes) -> str:
    """Make the policy of a document that the server sends."""
    hashes = {base64.b64encode(hashlib.sha256(one).digest()).decode() for one in INLINE.findall(document)}
    scripts = " ".join(f"'sha256-{one}'" for one in sorted(hashes))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-eval' {scripts}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self';"
        f" base-uri 'self'; form-action 'none'; frame-ancestors {FRAMES}"
    )


class Around:
    """ASGI middleware that answers ``/health`` and ``HEAD /``, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, loading: Future[Any]) -> None:
        self._app, self._loading = app, loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] == "/health" and scope["method"] in ("GET", "HEAD"):
            return await health(self._loading)(scope, receive, send)
        if scope["path"] in ("", "/") and scope["method"] == "HEAD":  # Gradio asks it of itself at its launch
            return await HTMLResponse()(scope, receive, send)
        document: list[Message] = []  # of HTML: the head and what came of the body, until that is whole

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "same-origin"
                if headers.get("content-type", "").startswith("text/html"):
                    return document.append(message)
                headers["content-security-policy"] = FILE_POLICY
            elif document:
                document.append(message)
                if message.get("more_body"):
                    return None
                head, *bodies = document
                body = b"".join(one.get("body", b"") for one in bodies)
                MutableHeaders(scope=head)["content-security-policy"] = page_policy(body)
                await send(head)
                message = {"type": "http.response.body", "body": body}
            return await send(message)

        return await self._app(scope, receive, secured)


# --- what a request may cost: its bytes, its values, how often its address may ask ---------------

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
        return await self._app(scope, _again(body, receive), send)


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
