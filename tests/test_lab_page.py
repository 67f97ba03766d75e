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
from visual.turns import Turn

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


def wish(**change: Any) -> Turn:
    return Turn(**{"picture": Picture(), "question": "What?", "values": DEFAULTS} | change)


def desk(lab: FakeLab, **wanted: Turn) -> Desk:
    table = Desk(lambda: lab, Picture)
    for name, turn in wanted.items():
        table.turns.enter(("me", name), turn)
    return table


def notes(run: Iterator[tuple[str, Any]]) -> list[str]:
    return [said(note) for note, _ in run]


def said(note: str) -> str:
    """A notice's kind and words."""
    told = json.loads(note)
    return f"{told['kind']}: {told['text']}"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_ends_with_a_view_and_leaves_the_desk(experiment: Experiment):
    more = {"knob": "depth", "seeing": Picture(), "fork": []}.get(experiment.name)
    table = desk(FakeLab(), **{experiment.name: wish(more=more)})
    *_, (note, view) = follow(table, "me", experiment)
    assert note == "" and view is not None and view["answer"]
    assert table.turns.latest(("me", experiment.name)) is None


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
    last = notes(follow(desk(FakeLab(), rules=wish(question=question, values=values)), "me", RULES))[-1]
    assert last.startswith(words) and "secret" not in last


def test_without_a_picture_nothing_runs():
    run = follow(desk(FakeLab(), rules=wish(picture=None)), "me", RULES)
    assert notes(run) == ["error: This cannot run: choose a picture first"]


def test_what_nobody_wants_any_more_does_not_start():
    assert notes(follow(desk(FakeLab()), "me", RULES)) == []
    lab = FakeLab()
    table = desk(lab, rules=wish())
    table.turns.stop(("me", "rules"))
    assert [said(note).split(".")[0] for note, view in follow(table, "me", RULES) if view is None] == ["info: Stopped"]
    assert lab.asked == [] and table.turns.latest(("me", "rules")) is None


@pytest.mark.parametrize(("ends", "words"), [("stop", ["info: Stopped"]), ("leave", []), ("enter", [])])
def test_it_ends_between_two_findings_when_its_visitor_wants_no_more(ends: str, words: list[str]):
    lab, later = Endless(), wish()
    table = desk(lab, rules=wish(), knob=later)
    told = []
    for note, _ in follow(table, "me", RULES):
        told.append(note)
        if len(told) == 4:
            getattr(table.turns, ends)(("me", "rules"), *([later] if ends == "enter" else []))
    assert [said(note).split(".")[0] for note in told[4:]] == words
    assert lab.asked[-1] == "closed"
    assert table.turns.latest(("me", "rules")) is (later if ends == "enter" else None)
    assert table.turns.latest(("me", "knob")) is later
    table.forget("me")
    assert table.turns.latest(("me", "knob")) is None


def test_it_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("visual.lab.SECONDS_PER_RUN", 0.0)
    last = notes(follow(desk(Endless(), rules=wish()), "me", RULES))[-1]
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
