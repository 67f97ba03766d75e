"""A free port, and what an address answers once a process serves it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from multiprocessing.process import BaseProcess
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
