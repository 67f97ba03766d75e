"""What those who run the page see of it: ``/health``, a line per run, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError

import pytest
from support.browser import VIEWPORT, new_page
from support.scenes import scene
from support.served_page import answer_of, free_port
from support.visual_traces import FakeBackend

import app
from specllava.cli.page_options import PageOptions
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.race import race_kind
from visual.page.run_requests import RunRequest
from visual.page.runs import CLOSED, run_updates
from visual.page.serving import serve

ROOT = Path(__file__).resolve().parents[1]


def health(address: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{address}health", timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refusal:
        return refusal.code, json.load(refusal)


@pytest.fixture
def opened() -> Iterator[Callable[[AppState], str]]:
    pages = []

    def open_page(state: AppState) -> str:
        pages.append(build_page(state))
        return serve(pages[-1], "127.0.0.1", free_port(), state, block=False)

    yield open_page
    for page in pages:
        page.close(verbose=False)


def test_health_tells_loading_then_ready_with_the_pair(opened: Callable[[AppState], str]) -> None:
    """Loading answers 200: whoever restarts what is not alive would otherwise never let a large pair load."""
    there = Event()

    def load() -> FakeBackend:
        assert there.wait(60)
        return FakeBackend()

    state = AppState(load)
    address = opened(state)
    assert health(address) == (200, {"status": "loading"})
    there.set()
    state.loading.result(60)
    running = {"pair": "synthetic pair", "device": "cpu", "dtype": "float32"}
    assert health(address) == (200, {"status": "ready"} | running)
    head = urllib.request.Request(f"{address}health", method="HEAD")
    assert urllib.request.urlopen(head).status == 200


def test_a_question_whether_the_page_is_up_makes_no_document(
    opened: Callable[[AppState], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio asks at its launch and gives up after three seconds, so a page on a busy machine did not start."""
    address = opened(AppState(FakeBackend))
    monkeypatch.setattr("gradio.routes.templates.TemplateResponse", None)
    with urllib.request.urlopen(urllib.request.Request(address, method="HEAD")) as answer:
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")


def test_models_are_loaded_once_the_page_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loads competes with the launch, which fails where the server takes five seconds to start."""
    launched, loaded = Event(), Event()
    monkeypatch.setattr(app, "load_pair", lambda running: loaded.set() or FakeBackend())
    state = app.make_state(PageOptions(), launched)
    assert not state.loading.done() and not loaded.wait(0.3)
    launched.set()
    assert state.loading.result(60).pair == "synthetic pair" and loaded.is_set()


def test_health_of_models_that_could_not_be_loaded_says_no_more_than_that(opened: Callable[[AppState], str]) -> None:
    def load() -> FakeBackend:
        raise OSError("/secret/path is not there")

    state = AppState(load)
    address = opened(state)
    assert state.loading.exception(60)
    assert health(address) == (503, {"status": "failed"})
    assert urllib.request.urlopen(address).status == 200  # the page is up


# --- a line per run -------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    monkeypatch.setattr(logging.getLogger("specllava.runs"), "propagate", True)
    caplog.set_level(logging.INFO, "specllava.runs")
    return lambda: [json.loads(one.getMessage()) for one in caplog.records if one.name == "specllava.runs"]


def race(state: AppState, question: str, **change: Any) -> Iterator[Any]:
    """The updates of a race that is requested now."""
    request = RunRequest(scene(3), question, change)
    key = ("me", "race")
    state.requests.request(key, request)
    return run_updates(state.requests, race_kind(state), key)


@pytest.mark.parametrize("tokens", [8, 24, 48])
def test_a_finished_race_logs_its_tokens_and_tau(tokens: int, lines: Callable[[], list[dict[str, Any]]]) -> None:
    question = f"What is there {tokens} times?"
    *_, (frames, _) = race(AppState(FakeBackend), question, max_new_tokens=tokens)
    assert frames
    (line,) = lines()
    assert (line["run"], line["outcome"], line["tokens"]) == ("race", "finished", tokens)
    assert line["tau"] > 1 and 0 <= line["seconds"] < 60


def test_no_line_holds_what_was_asked_or_answered(lines: Callable[[], list[dict[str, Any]]]) -> None:
    """Whatever becomes of a run: finished, refused, failed, stopped, left in the middle, ended with the server."""
    for question, end in (
        ("umbrella?", "finished"), ("", "refused"), ("fail umbrella", "failed"), ("umbrella", "stopped"),
        ("umbrella", "left"), ("umbrella", "closed"),
    ):  # fmt: skip
        state = AppState(FakeBackend)
        updates = race(state, question)
        if end == "left":
            next(updates)
            updates.close()
        elif end == "stopped":
            state.requests.stop(("me", "race"))
        elif end == "closed":
            state.requests.close()
        list(updates)
        line = lines()[-1]
        assert line["outcome"] == end and set(line) <= {"run", "outcome", "ended", "seconds", "tokens", "tau"}
        assert "umbrella" not in json.dumps(line)
    assert len(lines()) == 6


def test_a_lane_without_a_step_has_no_tau(lines: Callable[[], list[dict[str, Any]]]) -> None:
    list(race(AppState(FakeBackend), "What?", max_new_tokens=1))
    assert lines()[0]["tau"] is None and lines()[0]["tokens"] == 1


def test_the_page_prints_a_line_of_json_for_every_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = logging.getLogger("specllava.runs")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(runs, name, getattr(runs, name))
    app._print_runs()
    list(race(AppState(FakeBackend), "What?"))
    list(race(AppState(FakeBackend), ""))
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["outcome"] for line in printed] == ["finished", "refused"]


# --- the end --------------------------------------------------------------------------------------------------------


def test_runs_are_told_that_the_server_ends_and_keep_what_is_there() -> None:
    state = AppState(lambda: FakeBackend(pace=0.05))
    updates = race(state, "What is there?")
    assert next(updates)[0] is None and next(updates)[0]
    state.requests.close()
    *_, (value, notice) = updates
    assert value and json.loads(notice)["text"] == f"{CLOSED} What is shown so far stays here."
    *_, (value, notice) = race(state, "And now?")
    assert value is None and CLOSED in notice
    assert state.requests.empty


@pytest.mark.night
def test_a_stopped_server_tells_its_visitors_ends_their_streams_and_exits_with_0(browser: Any, tmp_path: Path) -> None:
    """An open page held its stream until the server gave up waiting for it, and a run was cut without a word."""
    port, folder = free_port(), tmp_path / "recorded"
    folder.mkdir()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "support.served_page", str(port), str(folder)]
    server = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}/"
    answer_of(address, server)
    page = new_page(browser, VIEWPORT, locale="en-GB")
    page.goto(address)
    page.wait_for_selector(".tree .main-svg", timeout=90_000)
    page.fill("#question textarea", "slowly, please")
    page.click("#run")
    page.wait_for_function("document.querySelector('.origin').textContent.includes('live')", timeout=90_000)
    started = time.monotonic()
    server.send_signal(signal.SIGTERM)
    page.wait_for_function(f"document.querySelector('#notice').textContent.includes({CLOSED!r})", timeout=20_000)
    _, said = server.communicate(timeout=30)
    assert server.returncode == 0 and time.monotonic() - started < 10
    assert "Traceback" not in said
    page.close()
