"""The lab below the player: a card per experiment, computed only when asked. Layout and handlers; no torch."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gradio as gr
from PIL import Image

from specllava.findings.sweep import KNOBS
from visual import pieces
from visual.ask import QUICK
from visual.controls import decoding_config
from visual.experiments import EXPERIMENTS, Experiment, Experiments
from visual.lab_views import View
from visual.live import SECONDS_PER_RUN
from visual.notices import info, notice_arguments, readable, warning
from visual.player import PLOTLY_JS, STATIC, static_version

MODULES = ("charts.js", "player.js", "lab.js")
MOUNT = """
const load = (name) => import(new URL(`gradio_api/file=${props.assets}/${name}?v=${props.version}`, document.baseURI));
Promise.all(props.modules.map(load)).then(([charts, player, lab]) =>
  lab.mount({ element, props, watch, charts, player, choose: (given) => trigger("select", { given }) }));
"""


class Shown(Protocol):
    """A picture: ``open`` gives it as the models get it, ``shown`` as the visitor sees it."""

    def open(self) -> Image.Image: ...

    def shown(self) -> Image.Image: ...


@dataclass(frozen=True)
class Desk:
    """What the lab of one running page shares.

    Args:
        experiments: waits for the models; raises if they could not be loaded.
        another: a picture that is not the visitor's.
        slot: the concurrency slot of everything that computes.
        wanted: session and experiment of what shall run; what leaves the set stops at its next finding.
    """

    experiments: Callable[[], Experiments]
    another: Callable[[], Shown]
    slot: str
    wanted: set[tuple[str, str]] = field(default_factory=set)

    def forget(self, session: str) -> None:
        """Stop everything of a session."""
        self.wanted.difference_update({key for key in self.wanted if key[0] == session})


# --- what the lab does --------------------------------------------------------------------------------------------


def follow(
    desk: Desk, session: str, experiment: Experiment, picture: Shown | None, question: str, more: Any,
    values: Sequence[Any],
) -> Iterator[tuple[str, View | None]]:  # fmt: skip
    """Stream an experiment to one visitor: ``(note, view)``; no view leaves what is shown.

    It ends early on stop, on error and at the deadline.
    """
    events = _follow(desk, session, experiment, picture, question, more, values)
    return readable("the experiment", events, lambda notice: (notice, None))


def _follow(
    desk: Desk, session: str, experiment: Experiment, picture: Shown | None, question: str, more: Any,
    values: Sequence[Any],
) -> Iterator[tuple[str, View | None]]:  # fmt: skip
    key = session, experiment.name
    stream: Generator[Any] | None = None
    try:
        if key not in desk.wanted:
            return
        config = decoding_config(values)
        if picture is None:
            raise ValueError("choose a picture first")
        yield info("Getting ready: models, picture, question."), None
        stream = experiment.start(desk.experiments(), picture.open(), question, more, config)
        yield from _watched(stream, experiment, lambda: key not in desk.wanted)
    finally:
        if stream is not None:
            stream.close()
        desk.wanted.discard(key)


def _watched(
    stream: Generator[Any], experiment: Experiment, stopped: Callable[[], bool]
) -> Iterator[tuple[str, View | None]]:
    started, before, view = time.monotonic(), None, None
    for found in stream:
        if stopped():
            yield info("Stopped. What was found so far stays here."), view
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
    _connect(desk, experiment, inputs, (run, stop, note, result, more))


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


def _connect(desk: Desk, experiment: Experiment, inputs: Inputs, on: tuple[Any, ...]) -> None:
    run, stop, note, result, more = on

    def begin(request: gr.Request) -> tuple[Any, Any, str]:
        waiting = info("Waiting for what runs before it." if desk.wanted else "")
        desk.wanted.add((request.session_hash or "", experiment.name))
        return gr.update(interactive=False), gr.update(interactive=True), waiting

    def begin_from(request: gr.Request, event: gr.EventData) -> tuple[Any, ...]:
        return chosen(event), *begin(request)

    def compute(request: gr.Request, picture: Shown | None, question: str, more: Any, *values: Any) -> Iterator[Any]:
        for text, view in follow(desk, request.session_hash or "", experiment, picture, question, more, values):
            yield {note: text} if view is None else {note: text, result: json.dumps(view, allow_nan=False)}

    def leave(request: gr.Request) -> tuple[Any, Any]:
        desk.wanted.discard((request.session_hash or "", experiment.name))
        return gr.update(interactive=True), gr.update(interactive=False)

    if experiment.name == "fork":
        asked = [run.click, result.select, inputs.player.select]
        begun = gr.on(asked, begin_from, None, [more, run, stop, note], **QUICK)
    else:
        begun = run.click(begin, None, [run, stop, note], **QUICK)
    begun.then(
        compute, [inputs.picture, inputs.question, more, *inputs.settings], [note, result], concurrency_id=desk.slot,
        concurrency_limit=1, show_progress="hidden", api_visibility="private",
    ).then(leave, None, [run, stop], **QUICK)  # fmt: skip
    stop.click(leave, None, [run, stop], **QUICK)


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
