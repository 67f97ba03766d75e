"""The lab below the player: a card per experiment, computed only when asked. Layout and handlers; no torch."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from PIL import Image

from specllava.findings.sweep import KNOBS
from visual import pieces
from visual.ask import check_question, kept
from visual.controls import decoding_config
from visual.experiments import EXPERIMENTS, Experiment, Experiments
from visual.lab_views import View
from visual.line import QUICK, Kind, Stand, line_up
from visual.live import SECONDS_PER_RUN
from visual.notices import info, notice_arguments, readable, warning
from visual.player import PLOTLY_JS, STATIC, static_version
from visual.turns import Shown, Turn, Turns, Wanted

MODULES = ("charts.js", "player.js", "lab.js")
STOPPED = info("Stopped. What was found so far stays here.")
MOUNT = """
const load = (name) => import(new URL(`gradio_api/file=${props.assets}/${name}?v=${props.version}`, document.baseURI));
Promise.all(props.modules.map(load)).then(([charts, player, lab]) =>
  lab.mount({ element, props, watch, charts, player, choose: (given) => trigger("select", { given }) }));
"""


@dataclass(frozen=True)
class Desk:
    """What the lab of one running page shares.

    Args:
        experiments: waits for the models; raises if they could not be loaded.
        another: a picture that is not the visitor's.
        turns: by session and experiment's name, the run that a visitor wants.
    """

    experiments: Callable[[], Experiments]
    another: Callable[[], Shown]
    turns: Turns = field(default_factory=Turns)

    def forget(self, session: str) -> None:
        """Stop everything of a session."""
        for experiment in EXPERIMENTS:
            self.turns.leave((session, experiment.name))


# --- what the lab does --------------------------------------------------------------------------------------------


def follow(desk: Desk, experiment: Experiment, turn: Turn, wanted: Wanted) -> Iterator[tuple[str, View | None]]:
    """Stream a visitor's run: ``(note, view)``; no view leaves what is shown.

    It ends early on stop, on error and at the deadline.
    """
    return readable("the experiment", _follow(desk, experiment, turn, wanted), lambda notice: (notice, None))


def _follow(desk: Desk, experiment: Experiment, turn: Turn, wanted: Wanted) -> Iterator[tuple[str, View | None]]:
    config = decoding_config(turn.values)
    if turn.picture is None:
        raise ValueError("choose a picture first")
    check_question(turn.question)
    yield info("Getting ready: models, picture, question."), None
    found = experiment.start(desk.experiments(), turn.picture.open(), turn.question, turn.more, config)
    with closing(found) as stream:
        yield from _watched(stream, experiment, wanted)


def _watched(stream: Generator[Any], experiment: Experiment, wanted: Wanted) -> Iterator[tuple[str, View | None]]:
    started, before, view = time.monotonic(), None, None
    for found in stream:
        wish = wanted()
        if wish == "left":
            return
        if wish == "stopped":
            yield STOPPED, view
            return
        if found is not before:
            before = found
            progress, view = experiment.view(found)
            yield info(progress), view
        if time.monotonic() - started > SECONDS_PER_RUN:
            yield warning(f"Stopped after {SECONDS_PER_RUN:.0f} seconds. What was found so far stays here."), view
            return
    yield "", view


def chosen(event: gr.EventData) -> list[int]:
    """The tokens that a visitor's click asks to go on from; none for the button.

    Raises:
        gr.Error: what came is no list of whole numbers.
    """
    given = (event._data or {}).get("given", [])
    if not isinstance(given, list) or not all(type(token) is int for token in given):
        raise gr.Error("tokens to go on from must be whole numbers")
    return given


# --- what it looks like -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """What experiments run on, chosen elsewhere on the page."""

    picture: gr.State
    question: gr.Textbox
    settings: Sequence[Any]
    player: gr.HTML  # whose ``select`` names a token to go on from


def lab_section(desk: Desk, page: gr.Blocks, inputs: Inputs) -> None:
    """All five cards. Nothing is computed before a visitor asks."""
    with gr.Column(elem_id="lab"):
        gr.HTML(**pieces.constant_arguments(_heading()), elem_id="lab-heading")
        for experiment in EXPERIMENTS:
            _card(desk, experiment, inputs)

    def gone(request: gr.Request) -> None:
        desk.forget(request.session_hash or "")

    page.unload(gone)


def _heading() -> str:
    about = "Experiments with your picture, your question and your settings. Each runs when you ask for it."
    return f'<h2 class="eyebrow">Lab</h2><p>{html.escape(about)}</p>'


def _card(desk: Desk, experiment: Experiment, inputs: Inputs) -> None:
    title = f"<h3>{html.escape(experiment.title)}</h3><p>{html.escape(experiment.about)}</p>"
    with gr.Column(elem_classes="card experiment", elem_id=f"lab-{experiment.name}"):
        gr.HTML(**pieces.constant_arguments(title), elem_classes="about")
        with gr.Row(elem_classes="lab-controls"):
            more = _more(desk, experiment)
            run = gr.Button(experiment.button, size="sm", elem_classes="lab-run")
            stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="lab-stop")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
        result = gr.HTML(**result_arguments(), elem_classes="lab-said")
    _connect(desk, experiment, inputs, more, Stand(run, stop, note, result))


def _more(desk: Desk, experiment: Experiment) -> Any:
    """The control that only this experiment has; a state without a face where there is none."""
    if experiment.name == "knob":
        fields = [(name.replace("_", " "), name) for name in KNOBS]
        return gr.Radio(fields, value=fields[0][1], show_label=False, container=False, label="Knob", elem_id="knob")
    if experiment.name != "seeing":
        return gr.State([])
    other = desk.another()
    picture = gr.State(other)
    shown = gr.Image(
        other.shown(), interactive=False, show_label=False, container=False, buttons=[], elem_id="other",
        label="The other picture", alt_text="The other picture, which only the draft sees",
    )  # fmt: skip
    button = gr.Button("Another one", size="sm", elem_classes="pill")

    def draw() -> tuple[Shown, Image.Image]:
        drawn = desk.another()
        return drawn, drawn.shown()

    button.click(draw, None, [picture, shown], **QUICK)
    return picture


def _connect(desk: Desk, experiment: Experiment, inputs: Inputs, more: Any, on: Stand) -> None:
    fork = experiment.name == "fork"

    def asked(event: gr.EventData, picture: Shown | None, question: str | None, more: Any, *values: Any) -> Turn:
        return Turn(picture, kept(question), values, chosen(event) if fork else more)

    def run(turn: Turn, wanted: Wanted) -> Iterator[dict[Any, Any]]:
        for note, view in follow(desk, experiment, turn, wanted):
            yield {on.notice: note} if view is None else {on.notice: note, on.shown: json.dumps(view, allow_nan=False)}

    def waits(others: int) -> str:
        return "Waiting for what runs before it."

    kind = Kind(desk.turns, lambda session: (session, experiment.name), asked, run, waits, STOPPED)
    clicks = [on.run.click, *([on.shown.select, inputs.player.select] if fork else [])]
    line_up(kind, on, clicks, [inputs.picture, inputs.question, more, *inputs.settings])


def result_arguments() -> dict[str, Any]:
    """Arguments of a ``gr.HTML`` that shows a view; its value is JSON, empty until something was found."""
    return {
        "value": "",
        "html_template": (STATIC / "lab.html").read_text(encoding="utf-8"),
        "js_on_load": MOUNT,
        "apply_default_css": False,
        "assets": STATIC.as_posix(),
        "modules": list(MODULES),
        "plotly": PLOTLY_JS.as_posix(),
        "version": static_version(MODULES),
    }
