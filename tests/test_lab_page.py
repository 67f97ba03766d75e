"""The lab's handlers, without a browser: what a visitor gets to read, and that whatever was begun is closed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from support.lab_traces import FakeLab
from support.scenes import scene
from test_runs import said

from specllava.config import Limits
from visual.page.app_state import AppState
from visual.page.lab import EXPERIMENTS, Experiment, experiment_kind
from visual.page.layout import build_page
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import Update, run_updates

RULES = EXPERIMENTS[0]


class Slow(FakeLab):
    """An experiment that decodes without end and finds something new every fourth step; ``step`` is called at each."""

    def __init__(self, step: Callable[[int], None] = lambda count: None) -> None:
        super().__init__()
        self.steps = 0
        self.step = step

    def rules(self, *asked: Any) -> Generator[Any]:
        found = list(super().rules(scene().open(), "What?", *asked[2:]))
        try:
            while True:
                self.steps += 1
                self.step(self.steps)
                yield found[self.steps // 4 % len(found)]
        finally:
            self.asked.append("closed")


def run(
    lab: FakeLab, experiment: Experiment = RULES, requests: RunRequests | None = None, **change: Any
) -> Iterator[Update]:
    requests, key = requests or RunRequests(), ("me", experiment.name)
    requests.request(key, RunRequest(**{"picture": scene(), "question": "What?", "settings": {}} | change))
    kind = experiment_kind(AppState(Mock(), lab=lambda: lab, requests=requests), experiment)
    return run_updates(requests, kind, key)


def notes(run: Iterator[Update]) -> list[str]:
    return [f"{json.loads(note)['kind']}: {json.loads(note)['text']}" for _, note in run]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_ends_with_a_view(experiment: Experiment):
    more = {"sweep": "depth", "image-ablation": scene()}.get(experiment.name)
    *_, (view, note) = run(FakeLab(), experiment, more=more)
    assert note == "" and json.loads(view)["answer"]


@pytest.mark.parametrize(
    ("question", "change", "words"),
    [
        (" ", {}, "error: This cannot run: the prompt is empty"),
        ("What?", {"depth": 0}, "error: Please change the settings: depth = 0"),
        ("fail", {}, "error: Something went wrong"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(question: str, change: dict[str, Any], words: str):
    last = notes(run(FakeLab(), question=question, settings=change))[-1]
    assert last.startswith(words) and "secret" not in last


def test_without_a_picture_nothing_runs():
    assert notes(run(FakeLab(), picture=None)) == ["error: This cannot run: choose a picture first, or No picture"]


@pytest.mark.parametrize(("end", "words"), [("stop", ["Stopped. What was found so far stays here."]), ("cancel", [])])
def test_it_ends_within_a_step_when_its_visitor_wants_no_more(end: str, words: list[str]):
    requests = RunRequests()

    def step(count: int) -> None:
        if count == 6:  # between two findings
            getattr(requests, end)(("me", RULES.name))

    lab = Slow(step)
    updates = list(run(lab, requests=requests))
    assert lab.steps == 6 and lab.asked[-1] == "closed"
    ready, first, second, *last = updates
    assert "Getting ready" in said(ready) and first[0] != second[0]
    assert [said(update) for update in last] == words and all(view == second[0] for view, _ in last)


def test_it_does_not_run_for_ever():
    """The deadline acts at the next step, found or not."""
    lab, requests = Slow(), RunRequests(Limits(seconds_per_run=1e-9))
    said = notes(run(lab, requests=requests))[-1]
    assert said == "warning: Stopped after 0 seconds. What was found so far stays here."
    assert lab.steps == 1


def test_nothing_is_shown_until_something_is_found():
    """Words are marked once there is an answer: its steps before yield nothing."""

    class Steps(FakeLab):
        def grounding(self, *asked: Any) -> Generator[Any]:
            yield from (None, None)
            yield from super().grounding(*asked)

    grounding = next(one for one in EXPERIMENTS if one.name == "grounding")
    updates = list(run(Steps(), grounding, more=[]))
    assert [view is None for view, _ in updates] == [True, False, False, False, False]


def test_the_page_can_do_without_a_lab():
    backend = SimpleNamespace(info=None)
    page = build_page(AppState(lambda: backend))
    assert not [block for block in page.blocks.values() if getattr(block, "elem_id", None) == "lab"]
