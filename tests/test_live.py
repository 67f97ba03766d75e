"""A race that is happening reaches the page in bundles of time, and always once more at its end."""

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from visual_traces import FakeBackend

from specllava.config import DecodingConfig
from visual import live
from visual.live import SECONDS_PER_RUN, SECONDS_PER_UPDATE, follow
from visual.turns import Wish

PICTURE = Image.new("RGB", (4, 4))


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    return clock


def paced(clock: Clock, seconds: float, drawn: list[Any]) -> Iterator[Any]:
    """A synthetic race whose events come ``seconds`` apart."""
    for event in FakeBackend().race(PICTURE, "what is this?", DecodingConfig()):
        clock.now += seconds
        drawn.append(event)
        yield event


def test_a_race_shorter_than_one_update_is_shown_once_when_it_is_over(clock: Clock) -> None:
    drawn: list[Any] = []
    updates = list(follow(paced(clock, 0.0, drawn), FakeBackend().collect_race, lambda: "on"))
    assert len(updates) == 1
    assert updates[0][1] == ""
    assert len(drawn) > 40


@pytest.mark.parametrize("events_per_update", [1, 4, 9])
def test_updates_come_as_often_as_they_may_and_once_at_the_end(clock: Clock, events_per_update: int) -> None:
    drawn: list[Any] = []
    times = []
    race = paced(clock, SECONDS_PER_UPDATE / events_per_update, drawn)
    for _ in follow(race, FakeBackend().collect_race, lambda: "on"):
        times.append(len(drawn))
    *during, last = times
    assert during == list(range(events_per_update, len(drawn) + 1, events_per_update))
    assert last == len(drawn)


def test_a_race_ends_when_its_visitor_stops_it(clock: Clock) -> None:
    drawn: list[Any] = []

    def wanted() -> Wish:
        return "stopped" if len(drawn) == 7 else "on"

    updates = list(follow(paced(clock, 0.001, drawn), FakeBackend().collect_race, wanted))
    assert len(drawn) == 7
    assert [note for _, note in updates] == [live.NOTES["stopped"]]


def test_a_race_that_was_left_for_something_else_says_nothing_more(clock: Clock) -> None:
    drawn: list[Any] = []

    def wanted() -> Wish:
        return "left" if len(drawn) == 7 else "on"

    assert list(follow(paced(clock, 0.001, drawn), FakeBackend().collect_race, wanted)) == []
    assert len(drawn) == 7


def test_a_race_ends_when_its_time_is_up(clock: Clock) -> None:
    drawn: list[Any] = []
    updates = list(follow(paced(clock, SECONDS_PER_RUN / 3, drawn), FakeBackend().collect_race, lambda: "on"))
    assert len(drawn) == 4
    assert updates[-1][1] == live.NOTES["deadline"]
