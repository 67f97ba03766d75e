"""Starting and stopping ``app.py``: where it listens, how it ends, and one line for whatever keeps it from starting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro
from support.served_page import answer_of, free_port
from support.visual_traces import SETTING

import app
from specllava.cli.page_options import PageOptions

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = ("GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT", "PORT", "GRADIO_ROOT_PATH", "SPACE_ID")


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine's own, and its signals as they were."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("variables", "arguments", "host", "port", "root"),
    [
        ({}, [], "127.0.0.1", 7860, ""),
        ({"SPACE_ID": "me/it"}, [], "0.0.0.0", 7860, ""),
        ({"GRADIO_SERVER_NAME": "::1", "SPACE_ID": "me/it"}, [], "::1", 7860, ""),
        ({"PORT": "8080"}, [], "127.0.0.1", 8080, ""),
        ({"PORT": "8080", "GRADIO_SERVER_PORT": "9"}, [], "127.0.0.1", 9, ""),
        ({"PORT": "8080", "GRADIO_SERVER_NAME": "x"}, ["--port", "5", "--host", "y"], "y", 5, ""),
        ({"GRADIO_ROOT_PATH": "/demo"}, [], "127.0.0.1", 7860, "/demo"),
        ({"GRADIO_ROOT_PATH": "/demo"}, ["--root-path", "/other"], "127.0.0.1", 7860, "/other"),
    ],
)
def test_the_environment_says_where_to_serve_and_the_command_line_wins(
    variables: dict[str, str], arguments: list[str], host: str, port: int, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = tyro.cli(PageOptions, args=arguments)
    assert (options.host, options.port, options.root_path) == (host, port, root)


Ended = Callable[..., str]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """The line with which ``main`` ends, given its arguments."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        capsys.readouterr()
        assert app.main() == 1
        line = capsys.readouterr().err.strip()
        assert line.startswith("app.py: ") and "\n" not in line
        return line

    monkeypatch.setattr(app, "load_pair", lambda running: Loaded())
    return run


class Loaded:
    """In the place of a pair."""

    info = SETTING


@pytest.mark.parametrize("index", ["{", "[1]", '[{"name": "1-easy"}]', "\udcff"])
def test_a_damaged_index_of_lessons_ends_in_one_line(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    (tmp_path / "lessons.json").write_bytes(index.encode(errors="surrogateescape"))
    monkeypatch.setattr(app, "LESSONS", tmp_path)
    assert "lessons.json is not a list of lessons: " in ended()


def test_an_example_without_its_picture_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    shutil.copy(app.EXAMPLES / "3-count.json", tmp_path)
    monkeypatch.setattr(app, "EXAMPLES", tmp_path)
    assert ended() == "app.py: 3-count.json has no picture beside it"
    (tmp_path / "3-count.png").write_bytes(b"nothing")
    assert "3-count.png is not a readable image" in ended()


def test_whatever_else_goes_wrong_ends_in_one_line_with_its_kind(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("one\ntwo")

    monkeypatch.setattr(app, "serve", fail)
    assert ended() == "app.py: KeyError: 'one\\ntwo'"
    monkeypatch.setenv("PORT", "http")
    assert "invalid literal for int() with base 10: 'http'" in ended()


def test_a_port_or_host_where_nothing_can_listen_ends_in_one_line(ended: Ended) -> None:
    way = "end what listens there, or choose another --port or --host"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, number in (("127.0.0.1", port), ("127.0.0.1", "70000"), ("192.0.2.1", "7860")):
            line = ended("--host", host, "--port", number)
            assert line == f"app.py: the page cannot be served on port {number} of {host}: {way}"


@pytest.mark.night
def test_a_container_stops_the_page_as_a_keyboard_does() -> None:
    port = free_port()
    variables = {"HF_HUB_OFFLINE": "1", "PORT": str(port), "GRADIO_ROOT_PATH": "/demo", "PYTHONUNBUFFERED": "1"}
    page = subprocess.Popen(
        [sys.executable, "app.py"], cwd=ROOT, env=os.environ | variables, stderr=subprocess.PIPE, text=True
    )
    config = json.loads(answer_of(f"http://127.0.0.1:{port}/config", page))
    assert config["root"].endswith("/demo")
    page.send_signal(signal.SIGTERM)
    _, said = page.communicate(timeout=60)
    assert page.returncode == 0 and "Traceback" not in said


CHURN = """
import threading, psutil, torch
from visual.page.serve import give_back_freed_memory
assert give_back_freed_memory()
kept = []
def visit():
    for _ in range(12):
        cache = [torch.zeros(2_000_000) for _ in range(4)]
        kept.append(torch.zeros(300))
        del cache
threads = [threading.Thread(target=visit) for _ in range(8)]
before = psutil.Process().memory_info().rss
for thread in threads: thread.start()
for thread in threads: thread.join()
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.night
def test_caches_of_many_threads_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", CHURN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30e6
