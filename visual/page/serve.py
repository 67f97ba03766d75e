"""Serving of a page that was built: what Gradio gets at its launch, ``/health``, security headers, and how it ends.

Gradio compiles templates and scripts of its HTML components in the browser (``new Function``), so the policy allows
``unsafe-eval``; and it styles elements one by one, so it allows inline styles. Inline scripts go by their hash.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import os
import re
import socket
import time
from concurrent.futures import Future
from typing import Any, Final

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visual.page.admission import Admission
from visual.page.state import PageState, Runs
from visual.player.saved_page import FAVICON, STATIC, static_text

SESSIONS: Final = 100  # of which Gradio keeps what it changed; a page of a forgotten one loses nothing but its dialogue
SECONDS_TO_END: Final = 3.0  # for runs to end, once the server is stopped
SECONDS_TO_SEND: Final = 0.5  # for what they say last to reach the browsers
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # parameters of mallopt in glibc's malloc.h
ALLOCATOR: Final = {ARENA_MAX: 2, MMAP_THRESHOLD: 2**20, TRIM_THRESHOLD: 2**20}
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
        _wait(page, state.runs)
    return address


def page_theme() -> gr.themes.Base:
    """Make the theme; system fonts only, since a web font would be a request to another host."""
    fonts = ["-apple-system", "BlinkMacSystemFont", "Segoe UI", "Roboto", "Liberation Sans", "Arial", "sans-serif"]
    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.gray, radius_size=gr.themes.sizes.radius_lg,
        font=fonts, font_mono=["ui-monospace", "Consolas", "monospace"],
    )  # fmt: skip
    shared = {
        "body_background_fill": "var(--paper)", "background_fill_primary": "var(--paper)",
        "background_fill_secondary": "var(--well)", "block_background_fill": "var(--paper)",
        "body_text_color": "var(--ink)", "body_text_color_subdued": "var(--muted)", "block_border_width": "0px",
        "input_background_fill": "var(--field)", "input_border_color": "var(--edge)",
        "border_color_primary": "var(--rule)", "button_primary_background_fill": "var(--ink)",
        "button_primary_background_fill_hover": "var(--ink)", "button_primary_text_color": "var(--paper)",
        "button_secondary_background_fill": "var(--well)", "button_secondary_background_fill_hover": "var(--rule)",
        "button_secondary_text_color": "var(--ink)", "block_info_text_color": "var(--muted)",
        "block_label_text_color": "var(--muted)", "block_title_text_color": "var(--ink)",
    }  # fmt: skip
    dark = {f"{name}_dark": value for name, value in shared.items() if not name.endswith("width")}
    return theme.set(**shared, **dark)


def _wait(page: gr.Blocks, runs: Runs) -> None:
    """Wait for Ctrl-C; then let every run tell its visitor that it ends, and close the streams of all pages.

    Raises:
        KeyboardInterrupt: that has happened.
    """
    try:
        while page.is_running:
            time.sleep(0.1)
    except KeyboardInterrupt:
        runs.close()
        last = time.monotonic() + SECONDS_TO_END
        while not runs.empty and time.monotonic() < last:
            time.sleep(0.05)
        time.sleep(SECONDS_TO_SEND)
        page.close(verbose=False)
        raise


def give_back_freed_memory() -> bool:
    """Let glibc's allocator give freed memory back to the system. Return whether there is one.

    By default it keeps an arena for each thread, and raises its threshold for mmap to the largest block ever freed. KV
    caches of many visitors then leave holes that nobody can use. Measured by ``benchmarks.load`` at commit 8a43eaf.
    """
    if not any(name == "CS_GNU_LIBC_VERSION" and os.confstr(name) for name in os.confstr_names):
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(parameter, value) == 1 for parameter, value in ALLOCATOR.items())


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
