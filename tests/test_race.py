"""A race that is happening reaches the page in bundles of time, and always once more at its end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from PIL import Image
from support.visual_traces import FakeBackend
from test_runs import said

from specllava.config import Limits
from visual.page import race, runs
from visual.page.app_state import AppState
from visual.page.pictures import Picture
from visual.page.race import RACE, SECONDS_PER_UPDATE, race_kind
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import Update, run_updates

PICTURE = Picture(upload=Image.new("RGB", (4, 4)))
ME = ("me", RACE)


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(race, "time", clock)
    monkeypatch.setattr(runs, "time", clock)
    return clock


class Paced:
    """A backend whose events come ``seconds`` apart; before the seventh the visitor stops the race or leaves it."""

    def __init__(self, clock: Clock, seconds: float, end: str = "") -> None:
        self.requests, self.drawn = RunRequests(), list[Any]()
        self._clock, self._seconds, self._end = clock, seconds, end
        self._backend = FakeBackend()
        self.info, self.sees, self.collect_race = self._backend.info, True, self._backend.collect_race

    def race(self, *asked: Any) -> Generator[Any]:
        for event in self._backend.race(*asked):
            self._clock.now += self._seconds
            self.drawn.append(event)
            if len(self.drawn) == 7 and self._end:
                getattr(self.requests, self._end)(ME)
            yield event

    def updates(self) -> Iterator[Update]:
        """A whole race, without the notice that it gets ready."""
        self.requests.request(ME, RunRequest(PICTURE, "what is this?", {}))
        updates = run_updates(self.requests, race_kind(AppState(lambda: self)), ME)
        assert "Getting ready" in said(next(updates)) and not self.drawn
        return updates


def test_a_race_shorter_than_one_update_is_shown_once_when_it_is_over(clock: Clock) -> None:
    backend = Paced(clock, 0.0)
    ((frames, notice),) = backend.updates()
    assert notice == "" and '"ending":"finished"' in frames[-1].replace(" ", "")
    assert len(backend.drawn) > 40


@pytest.mark.parametrize("events_per_update", [1, 4, 9])
def test_updates_come_as_often_as_they_may_and_once_at_the_end(clock: Clock, events_per_update: int) -> None:
    backend = Paced(clock, SECONDS_PER_UPDATE / events_per_update)
    *during, last = [len(backend.drawn) for _ in backend.updates()]
    assert during == list(range(events_per_update, len(backend.drawn) + 1, events_per_update))
    assert last == len(backend.drawn)


def test_a_race_ends_when_its_visitor_stops_it(clock: Clock) -> None:
    backend = Paced(clock, 0.001, "stop")
    (update,) = backend.updates()
    assert len(backend.drawn) == 7 and update[0]
    assert said(update) == "Stopped. What is shown so far stays here."


def test_a_race_that_was_left_for_something_else_says_nothing_more(clock: Clock) -> None:
    backend = Paced(clock, 0.001, "cancel")
    assert list(backend.updates()) == []
    assert len(backend.drawn) == 7


def test_a_race_ends_when_its_time_is_up(clock: Clock) -> None:
    backend = Paced(clock, Limits().seconds_per_run / 3)
    *_, last = backend.updates()
    assert len(backend.drawn) == 4
    assert said(last) == "Stopped after 120 seconds. What is shown so far stays here."
