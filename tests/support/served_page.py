"""A page over a stand-in in a process that a test can end: ``python -m support.served_page PORT FOLDER``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answer_of(address: str, process: subprocess.Popen[Any] | BaseProcess, seconds: float = 120) -> bytes:
    """Return what an address answers, once the process serves it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            alive = process.is_alive() if isinstance(process, BaseProcess) else process.poll() is None
            assert alive and time.monotonic() < deadline, f"nothing is served at {address}"
            time.sleep(0.2)


def main(port: str, folder: str) -> None:
    from support.visual_traces import FakeBackend, synthetic_recorded
    from visual.page.page import build_page
    from visual.page.serve import serve
    from visual.page.state import PageState

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state = PageState(lambda: FakeBackend(pace=0.012), synthetic_recorded(Path(folder), 2))
    with contextlib.suppress(KeyboardInterrupt):
        serve(build_page(state), "127.0.0.1", int(port), state)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
