"""Serving of a page that was built: limits, files and looks that Gradio gets at its launch, and how it ends."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from typing import Final

import gradio as gr
from starlette.middleware import Middleware

from visual.page import widgets
from visual.page.admission import Admission
from visual.page.app_state import AppState
from visual.page.middleware import HealthMiddleware, SecurityHeadersMiddleware
from visual.page.run_requests import RunRequests
from visual.player import markup

SESSIONS = 100  # of which Gradio keeps what it changed; a page of a forgotten one loses nothing (`PageBlocks`)
SECONDS_TO_END: Final = 3.0  # for runs to end, once the server is stopped
SECONDS_TO_SEND: Final = 0.5  # for what they say last to reach the browsers
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # parameters of mallopt in glibc's malloc.h
ALLOCATOR: Final = {ARENA_MAX: 2, MMAP_THRESHOLD: 2**20, TRIM_THRESHOLD: 2**20}


def serve(
    page: gr.Blocks, host: str, port: int, state: AppState, block: bool = True, root_path: str = ""
) -> str:
    """Serve the page to everybody who can reach ``host`` and return its address.

    Args:
        page: the whole page.
        host, port: where to listen.
        state: of the page, for its limits, for ``/health``, and for its runs, which end when the server is stopped.
        block: return only when the server has been stopped.
        root_path: path or address under which a proxy shows the page.

    Raises:
        ValueError: nothing can listen there; one line.
    """
    try:  # Gradio's own line names its variables and not our options
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError) as error:
        way = "end what listens there, or choose another --port or --host"
        raise ValueError(f"the page cannot be served on port {port} of {host}: {way}") from error
    limits = state.limits
    layers = [
        Middleware(SecurityHeadersMiddleware), Middleware(Admission, page=page, limits=limits),
        Middleware(HealthMiddleware, loading=state.loading),
    ]  # fmt: skip
    page.queue(max_size=limits.waiting, api_open=False)  # nobody comes past the one slot for what computes
    _, address, _ = page.launch(
        server_name=host, server_port=port, root_path=root_path, prevent_thread_lock=True, quiet=not block,
        show_error=False, ssr_mode=False, run_history=False, enable_monitoring=False, footer_links=[],
        state_session_capacity=SESSIONS, max_file_size=limits.upload_bytes, favicon_path=str(markup.FAVICON),
        theme=widgets.page_theme(), css=markup.stylesheet(), head=widgets.HEAD,
        app_kwargs={"middleware": layers},
    )  # fmt: skip
    state.launched.set()
    if block:
        _wait(page, state.requests)
    return address


def _wait(page: gr.Blocks, requests: RunRequests) -> None:
    """Wait for Ctrl-C; then let every run tell its visitor that it ends, and close the streams of all pages.

    Raises:
        KeyboardInterrupt: that has happened.
    """
    try:
        while page.is_running:
            time.sleep(0.1)
    except KeyboardInterrupt:
        requests.close()
        last = time.monotonic() + SECONDS_TO_END
        while not requests.empty and time.monotonic() < last:
            time.sleep(0.05)
        time.sleep(SECONDS_TO_SEND)
        page.close(verbose=False)
        raise


def give_back_freed_memory() -> bool:
    """Let glibc's allocator give freed memory back to the system. Return whether there is one.

    By default it keeps an arena for each thread. It also raises its threshold for mmap to the largest block ever freed,
    32 MB at most. KV caches of many visitors then leave holes that nobody else can use. Measured by
    ``benchmarks.load`` at commit 8a43eaf.
    """
    if not any(name == "CS_GNU_LIBC_VERSION" and os.confstr(name) for name in os.confstr_names):
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(parameter, value) == 1 for parameter, value in ALLOCATOR.items())
