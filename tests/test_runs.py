"""Requests and runs without a browser: the latest request counts, whether it waits, runs, or is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from PIL import Image
from support import models
from support.scenes import scene

from specllava.config import DecodingConfig
from specllava.config import Limits
from visual.page import runs
from visual.page.race import RaceRun
from visual.page.run_requests import QueuePosition, RunKey, RunRequest, RunRequests
from visual.page.runs import RunInputs, RunKind, Update, run_updates, session_of, waiting_notice
from visual.player.frames import Ending

ME: RunKey = ("me", "race")


class Picture:
    """A picture, as the page has them."""

    def open(self) -> Image.Image:
        return Image.new("RGB", (8, 8))

    preview = open


def ask(question: str = "What?", **change: Any) -> RunRequest:
    return RunRequest(**{"picture": scene(), "question": question, "settings": {}} | change)


class Endless:
    """A run that goes on until it is closed; ``before`` is called as each event is computed."""

    def __init__(self, inputs: RunInputs, before: Callable[[int], None]) -> None:
        self.question, self.computed, self.closed = inputs.question, 0, False
        self._before = before
        self.events = self._compute()

    def _compute(self) -> Generator[int]:
        try:
            while True:
                self.computed += 1
                self._before(self.computed)
                yield self.computed
        finally:
            self.closed = True

    def show(self, event: int) -> Update | None:
        return (event, self.question) if event % 2 else None

    def end(self, ending: Ending) -> Any:
        return f"{ending} after {self.computed}"

    def summary(self) -> None: ...


class Kind:
    """A kind of endless runs, and those that were started."""

    def __init__(self, before: Callable[[int], None] = lambda count: None) -> None:
        self.started: list[Endless] = []
        self._before = before
        self.kind = RunKind("race", "the race", "It stays.", ask, self._start)

    def _start(self, inputs: RunInputs) -> Endless:
        if inputs.question == "fail":
            raise RuntimeError("a secret inside")
        if not inputs.question:
            raise ValueError("the prompt is empty")
        self.started.append(Endless(inputs, self._before))
        return self.started[-1]


def said(update: Update) -> str:
    return str(json.loads(update[1])["text"]) if update[1].startswith("{") else update[1]


# --- requests -----------------------------------------------------------------------------------------------------


def test_the_latest_request_counts_and_is_on_until_it_is_stopped() -> None:
    requests = RunRequests()
    assert not requests.is_on(ME) and not requests.stop(ME)
    first, second = ask(), ask()
    requests.request(ME, first)
    assert requests.is_on(ME)
    requests.request(ME, second)
    assert (first.state, second.state) == ("left", "on") and requests.latest(ME) is second
    assert requests.stop(ME) and not requests.is_on(ME)
    assert (first.state, second.state) == ("left", "stopped")
    requests.remove(ME, first)  # over by now, while another is there
    assert requests.latest(ME) is second
    requests.cancel(ME)
    assert second.state == "left" and requests.latest(ME) is None


def test_others_are_counted_across_kinds_while_they_are_on() -> None:
    requests = RunRequests()
    for key in (("one", "race"), ("one", "grounding"), ("two", "rules"), ("three", "race")):
        requests.request(key, ask())
    requests.stop(("three", "race"))

    def before(key: RunKey) -> int:
        requests.request(key, ask())
        position = requests.position(key)
        assert position is not None
        return position.before

    assert before(ME) == before(ME) == 3
    assert before(("me", "grounding")) == 4
    requests.cancel(("one", "race"))
    assert before(ME) == 3


def test_who_is_gone_wants_no_run_any_more_and_others_are_never_touched() -> None:
    requests = RunRequests()
    keys = [(session, kind) for session in ("me", "you") for kind in ("race", "rules", "grounding")]
    for key in keys:
        requests.request(key, ask())
    requests.cancel_session("me")
    assert [key for key in keys if requests.is_on(key)] == keys[3:]


def test_a_call_without_a_session_is_refused() -> None:
    for nobody in (None, ""):
        with pytest.raises(gr.Error, match="session of an open page"):
            session_of(SimpleNamespace(session_hash=nobody))  # type: ignore[arg-type]


def test_a_notice_counts_the_runs_before() -> None:
    assert waiting_notice(QueuePosition(0)) == waiting_notice(None) == ""
    assert "1 other run before this one; it starts" in waiting_notice(QueuePosition(1))
    assert "2 other runs before this one, about 8 seconds" in waiting_notice(QueuePosition(2, 7.2))


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "words"), [("bad", "hardly accepts what bad draft guesses"), ("perfect", "")])
def test_a_race_with_a_draft_that_is_never_right_ends_with_a_notice(kind: models.DraftKind, words: str) -> None:
    pair, requests = models.pair(kind), RunRequests()

    def start(inputs: RunInputs) -> RaceRun:
        return RaceRun(pair.race(None, "Describe.", DecodingConfig(max_new_tokens=60)), pair.collect_race)

    requests.request(ME, ask())
    *_, last = run_updates(requests, RunKind("race", "the race", "It stays.", ask, start, RaceRun.advice), ME)
    assert last[0] and words in said(last) and bool(last[1]) is bool(words)


def test_a_run_is_stopped_at_the_next_event_and_keeps_what_is_there() -> None:
    """However slow its events are: nothing more is computed once Stop is clicked."""
    requests = RunRequests()
    kind = Kind(lambda count: None if count < 5 else assert_stop(requests))
    requests.request(ME, ask())
    updates = list(run_updates(requests, kind.kind, ME))
    assert [value for value, _ in updates] == [None, 1, 3, "stopped after 5"]
    assert said(updates[0]).startswith("Getting ready") and said(updates[-1]) == "Stopped. It stays."
    assert kind.started[0].closed and requests.latest(ME) is None


def assert_stop(requests: RunRequests) -> None:
    assert requests.stop(ME)


def test_a_run_ends_at_the_next_event_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def slow(count: int) -> None:
        clock.now += Limits().seconds_per_run / 2.5

    requests, kind = RunRequests(), Kind(slow)
    requests.request(ME, ask())
    *_, last = run_updates(requests, kind.kind, ME)
    assert last[0] == "deadline after 3" and said(last) == "Stopped after 120 seconds. It stays."
    assert kind.started[0].closed


def test_a_run_that_was_left_says_nothing_more() -> None:
    requests = RunRequests()
    later = ask("second")
    kind = Kind(lambda count: None if count < 5 else requests.request(ME, later) and None)
    requests.request(ME, ask("first"))
    assert [value for value, _ in run_updates(requests, kind.kind, ME)] == [None, 1, 3]
    assert kind.started[0].closed and requests.latest(ME) is later and requests.is_on(ME)


def test_what_was_stopped_or_left_while_it_waited_does_not_begin() -> None:
    requests, kind = RunRequests(), Kind()
    requests.request(ME, ask())
    requests.stop(ME)
    assert [said(update) for update in run_updates(requests, kind.kind, ME)] == ["Stopped. It stays."]
    requests.request(ME, ask())
    requests.cancel(ME)
    assert list(run_updates(requests, kind.kind, ME)) == [] and not kind.started
    assert requests.latest(ME) is None


def test_a_request_made_while_waiting_runs_in_place_of_the_stopped_one() -> None:
    requests, kind = RunRequests(), Kind()
    requests.request(ME, ask("first"))
    requests.stop(ME)
    requests.request(ME, ask("second"))
    run = run_updates(requests, kind.kind, ME)
    assert next(run)[0] is None and next(run) == (1, "second")
    run.close()
    assert kind.started[0].closed and requests.latest(ME) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"picture": None}, "This cannot run: choose a picture first, or No picture"),
        ({"question": ""}, "This cannot run: the prompt is empty"),
        ({"settings": {"drafter": 0}}, "Please change the settings: "),
        ({"question": "fail"}, "Something went wrong and the race was stopped"),
    ],
)
def test_what_cannot_run_is_said_and_is_over(change: dict[str, Any], words: str) -> None:
    requests, kind = RunRequests(), Kind()
    requests.request(ME, ask(**change))
    *_, last = run_updates(requests, kind.kind, ME)
    assert said(last).startswith(words) and "secret" not in said(last)
    assert requests.latest(ME) is None


def test_a_run_that_fails_on_its_way_is_over() -> None:
    def broken(count: int) -> None:
        if count == 3:
            raise RuntimeError("a secret inside")

    requests, kind = RunRequests(), Kind(broken)
    requests.request(ME, ask())
    *_, last = run_updates(requests, kind.kind, ME)
    assert json.loads(last[1])["word"] == "Failed", "it may well be possible"
    assert said(last).startswith("Something went wrong") and requests.latest(ME) is None
