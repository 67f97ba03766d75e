"""The lab's handlers, without a browser: what a visitor gets to read, and that whatever was begun is closed."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from lab_traces import FakeLab
from PIL import Image

from visual.controls import FIELDS
from visual.experiments import EXPERIMENTS, Experiment
from visual.lab import Desk, chosen, follow
from visual.turns import Turn, Wanted, Wish

RULES = EXPERIMENTS[0]
DEFAULTS = [", ".join(map(str, v)) if isinstance(v := info.default, tuple) else v for info in FIELDS.values()]


class Picture:
    """A picture, as the page has them."""

    def open(self) -> Image.Image:
        return Image.new("RGB", (8, 8))

    shown = open


class Endless(FakeLab):
    """An experiment that goes on until it is closed, and says so."""

    def rules(self, *_: Any) -> Generator[Any]:
        found = list(super().rules(Picture().open(), "What?", *_[2:]))
        try:
            while True:
                yield from found
        finally:
            self.asked.append("closed")


def run(
    lab: FakeLab, experiment: Experiment = RULES, wanted: Wanted = lambda: "on", **change: Any
) -> Iterator[tuple[str, Any]]:
    turn = Turn(**{"picture": Picture(), "question": "What?", "values": DEFAULTS} | change)
    return follow(Desk(lambda: lab, Picture), experiment, turn, wanted)


def notes(run: Iterator[tuple[str, Any]]) -> list[str]:
    return [said(note) for note, _ in run]


def said(note: str) -> str:
    """A notice's kind and words."""
    told = json.loads(note)
    return f"{told['kind']}: {told['text']}"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_ends_with_a_view(experiment: Experiment):
    more = {"knob": "depth", "seeing": Picture(), "fork": []}.get(experiment.name)
    *_, (note, view) = run(FakeLab(), experiment, more=more)
    assert note == "" and view is not None and view["answer"]


@pytest.mark.parametrize(
    ("question", "change", "words"),
    [
        (" ", {}, "error: This cannot run: the prompt is empty"),
        ("What?", {"depth": 0}, "error: Please change the settings: depth = 0"),
        ("fail", {}, "error: Something went wrong"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(question: str, change: dict[str, Any], words: str):
    values = [change.get(name, value) for name, value in zip(FIELDS, DEFAULTS, strict=True)]
    last = notes(run(FakeLab(), question=question, values=values))[-1]
    assert last.startswith(words) and "secret" not in last


def test_without_a_picture_nothing_runs():
    assert notes(run(FakeLab(), picture=None)) == ["error: This cannot run: choose a picture first"]


@pytest.mark.parametrize(("ends", "words"), [("stopped", ["info: Stopped"]), ("left", [])])
def test_it_ends_between_two_findings_when_its_visitor_wants_no_more(ends: Wish, words: list[str]):
    lab, told = Endless(), list[str]()
    for note, _ in run(lab, wanted=lambda: ends if len(told) == 4 else "on"):
        told.append(note)
    assert [said(note).split(".")[0] for note in told[4:]] == words
    assert lab.asked[-1] == "closed"


def test_it_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("visual.lab.SECONDS_PER_RUN", 0.0)
    assert notes(run(Endless()))[-1].startswith("warning: Stopped after 0 seconds")


def test_who_is_gone_wants_no_experiment_any_more():
    desk = Desk(FakeLab, Picture)
    keys = [(session, experiment.name) for session in ("me", "you") for experiment in EXPERIMENTS]
    for key in keys:
        desk.turns.enter(key, Turn(Picture(), "What?", DEFAULTS))
    desk.forget("me")
    assert [key for key in keys if desk.turns.wish(key) == "on"] == keys[len(EXPERIMENTS) :]


def test_a_click_brings_whole_numbers_or_nothing():
    assert chosen(gr.EventData(None, {"given": [3, 4]})) == [3, 4]
    assert chosen(gr.EventData(None, {})) == chosen(gr.EventData(None, None)) == []
    for bad in ("3", [True], [1.5], [["x"]], None):
        with pytest.raises(gr.Error):
            chosen(gr.EventData(None, {"given": bad}))


def test_the_page_can_do_without_a_lab():
    import app
    from visual.site import Site

    backend = SimpleNamespace(setting=None)
    page = app.build_page(Site(lambda: backend))
    assert not [block for block in page.blocks.values() if getattr(block, "elem_id", None) == "lab"]
