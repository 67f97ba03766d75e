"""Crowds, broken files and odd calls, over a stand-in for the models: everybody's own run ends as if alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.served_page import free_port
from support.visual_traces import FakeBackend, synthetic_recorded

from benchmarks.fuzz import Fuzz, fuzz
from benchmarks.load import Load, load, overtaken
from benchmarks.visitors.server import CROWD
from benchmarks.visitors.visitor import VisitorRun
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.run_requests import RunRequests
from visual.page.serving import serve


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    races = synthetic_recorded(tmp_path_factory.mktemp("recorded"), 2)
    state = AppState(lambda: FakeBackend(pace=0.002), races, requests=RunRequests(CROWD))
    page = build_page(state)
    yield serve(page, "127.0.0.1", free_port(), block=False, state=state)
    page.close()


def test_every_run_of_a_crowd_ends_in_order_with_its_own_tokens(address: str, tmp_path: Path) -> None:
    found = asyncio.run(load(address, None, visitors=6, runs=2))
    assert (found.failed, found.differing, found.overtaken) == ((), 0, 0)
    assert found.fits
    assert 0 < found.waits[0] <= found.waits[1] < found.seconds


def run(clicked: float, started: float | None) -> VisitorRun:
    return VisitorRun(clicked, started, (), None)


def test_who_clicked_later_and_ran_first_has_overtaken() -> None:
    assert overtaken([run(0.0, 1.0), run(1.0, 2.0), run(2.0, 3.0)]) == 0
    assert overtaken([run(0.0, 2.5), run(1.0, 2.0), run(2.0, 3.0)]) == 1
    assert overtaken([run(0.0, 2.0), run(0.1, 1.0), run(3.0, None)]) == 0, "at once"


def test_memory_failures_and_differences_do_not_fit() -> None:
    good = Load(2, 2, (), 0, 0, (0.1, 0.2), 1.0, (100, 109))
    assert good.fits
    for bad in ({"failed": ("full",)}, {"differing": 1}, {"overtaken": 1}, {"memory": (100, 111)}):
        fields = {name: getattr(good, name) for name in Load.__slots__} | bad
        assert not Load(**fields).fits


def test_broken_files_and_odd_calls_are_answered_and_change_nothing(address: str) -> None:
    """A part of what ``python -m benchmarks.fuzz`` does at the whole page."""
    found = asyncio.run(fuzz(address, files=40, calls=80, seed=1))
    assert (found.slow, found.silent, found.changed) == ([], [], 0)
    assert found.answers.total() == 120
    assert found.answers["file: done"] == 40


def test_silence_slowness_and_changes_do_not_fit() -> None:
    good = Fuzz()
    good.answered("file 1", "done", 4.9)
    assert good.fits
    good.answered("file 2", "done", 5.1)
    assert good.slow == [("file 2", 5.1)] and not good.fits
    assert not Fuzz(silent=["call 3"]).fits
    assert not Fuzz(changed=1).fits
