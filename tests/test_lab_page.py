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


def desk(lab: FakeLab, *wanted: str) -> Desk:
    return Desk(lambda: lab, Picture, "compute", {("me", name) for name in wanted})


def notes(run: Iterator[tuple[str, Any]]) -> list[str]:
    return [said(note) for note, _ in run]


def said(note: str) -> str:
    """A notice's kind and words."""
    told = json.loads(note)
    return f"{told['kind']}: {told['text']}"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_ends_with_a_view_and_leaves_the_desk(experiment: Experiment):
    more = {"knob": "depth", "seeing": Picture(), "fork": []}.get(experiment.name)
    table = desk(FakeLab(), experiment.name)
    *_, (note, view) = follow(table, "me", experiment, Picture(), "What?", more, DEFAULTS)
    assert note == "" and view is not None and view["answer"]
    assert not table.wanted


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
    last = notes(follow(desk(FakeLab(), "rules"), "me", RULES, Picture(), question, None, values))[-1]
    assert last.startswith(words) and "secret" not in last


def test_without_a_picture_nothing_runs():
    run = follow(desk(FakeLab(), "rules"), "me", RULES, None, "What?", None, DEFAULTS)
    assert notes(run) == ["error: This cannot run: choose a picture first"]


def test_what_nobody_wants_any_more_does_not_start():
    assert notes(follow(desk(FakeLab()), "me", RULES, Picture(), "What?", None, DEFAULTS)) == []


def test_stop_ends_it_between_two_findings_and_closes_it():
    lab = Endless()
    table = desk(lab, "rules", "knob")
    told = []
    for note, _ in follow(table, "me", RULES, Picture(), "What?", None, DEFAULTS):
        told.append(note)
        if len(told) == 4:
            table.wanted.discard(("me", "rules"))
    assert said(told[-1]).startswith("info: Stopped") and len(told) == 5
    assert lab.asked[-1] == "closed" and table.wanted == {("me", "knob")}
    table.forget("me")
    assert not table.wanted


def test_it_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("visual.lab.SECONDS_PER_RUN", 0.0)
    last = notes(follow(desk(Endless(), "rules"), "me", RULES, Picture(), "What?", None, DEFAULTS))[-1]
    assert last.startswith("warning: Stopped after 0 seconds")


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
