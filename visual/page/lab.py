"""The lab below the player: its experiments, a card and a run of each."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from specllava.config import DecodingConfig
from specllava.question import Messages
from specllava.findings.sweep import SWEEP_VALUES
from specllava.models.images import Pictures
from visual.page import widgets
from visual.page.app_state import AppState
from visual.page.controls import Settings
from visual.page.lab_views import (
    View,
    distillation_view,
    drafters_view,
    grounding_view,
    image_ablation_view,
    rules_view,
    sweep_view,
)
from visual.page.notices import info, notice_arguments
from visual.page.pictures import UNKNOWN, LostPicture, PictureSource, new_scene
from visual.page.run_requests import RunRequest
from visual.page.runs import QUICK, RunControls, RunInputs, RunKind, Update, connect_run, seen_picture
from visual.player.recorded import shorten_question
from visual.player.component import component_arguments
from visual.player.frames import Ending
from visual.player.static_files import PLOTLY_JS

if TYPE_CHECKING:
    from specllava.lab import Lab

MODULES = ("charts.js", "player.js", "compared.js", "lab.js")
MOUNT = "loaded.then((modules) => modules.lab.mount({ element, props, watch, modules }));"


@dataclass(frozen=True)
class Experiment:
    """One card of the lab.

    Args:
        start: runs it on a picture, a question and the settings, with one input more that only some need.
        view: returns the progress in words and the view of a finding.
        control: builds the control that only this card has, and returns what holds its value.
        read: returns that input as a click requests it, of the control's value.
        prepare: returns that input as the run takes it; a ``ValueError`` says what the visitor can change.
    """

    name: str
    title: str
    about: str
    button: str
    start: Callable[[Lab, Pictures, Messages, Any, DecodingConfig], Generator[Any]]
    view: Callable[[Any], tuple[str, View]]
    control: Callable[[AppState], Any] = lambda state: gr.State([])
    read: Callable[[AppState, Any], Any] = lambda state, value: value
    prepare: Callable[[AppState, RunInputs], Any] = lambda state, inputs: inputs.more


# --- controls and inputs of single experiments ----------------------------------------------------------------------


def _swept_option(state: AppState) -> gr.Radio:
    fields = [(name.replace("_", " "), name) for name in SWEEP_VALUES]
    return gr.Radio(fields, value=fields[0][1], show_label=False, container=False, label="Option", elem_id="swept")


def _other_picture(state: AppState) -> gr.HTML:
    """Build the other picture with a button that draws another one. Return its reference."""
    other, address, _ = new_scene("train")
    reference = gr.HTML(**widgets.held_arguments(state.uploads.reference("", other)))
    about = "The other picture, which only the draft sees"
    shown = gr.HTML(**widgets.picture_arguments(address, about), elem_id="other")
    button = gr.Button("Another one", size="sm", elem_classes="pill")

    def draw(request: gr.Request) -> tuple[Any, ...]:
        return state.uploads.with_reference(request.session_hash, new_scene("train")[:2])

    button.click(draw, None, [reference, shown], **QUICK)
    return reference


def _read_picture(state: AppState, reference: Any) -> PictureSource:
    return state.uploads.picture(reference) or LostPicture(UNKNOWN)


EXPERIMENTS = (
    Experiment(
        "rules", "Rules side by side",
        "The same question with every way to grow a tree: what a rule guesses right, and what that saves.",
        "Compare the rules", lambda lab, image, question, _, config: lab.rules(image, question, config), rules_view,
    ),
    Experiment(
        "drafters", "Who guesses best?",
        "The same question, guessed by every draft of the large model, and by looking up what the text said before.",
        "Compare the drafters",
        lambda lab, image, question, others, config: lab.drafters(image, question, others, config), drafters_view,
        prepare=lambda state, inputs: state.labs(),
    ),
    Experiment(
        "image-ablation", "Does seeing help? (image ablation)",
        "The large model always looks at your picture, so the answer stays the same. The small one guesses it three"
        " times: with your picture, with a grey one, and with this other one.",
        "Blindfold the draft",
        lambda lab, image, question, other, config: lab.image_ablation(image, question, other.open(), config),
        image_ablation_view, control=_other_picture, read=_read_picture,
    ),
    Experiment(
        "grounding", "Which words need the picture?",
        "The large model reads its own answer again, with a grey picture and with one part of yours grey at a time.",
        "Mark the words", lambda lab, image, question, _, config: lab.grounding(image, question, config),
        grounding_view,
    ),
    Experiment(
        "distillation", "Does distillation help?",
        "The small model learnt first from texts and then from the large one. Both stages guess the same answer.",
        "Compare before and after",
        lambda lab, image, question, _, config: lab.distillation(image, question, config), distillation_view,
    ),
    Experiment(
        "sweep", "Turn the knob (sweep)",
        "One number of your settings, turned from one end to the other while all else stays.",
        "Turn it", lambda lab, image, question, field, config: lab.sweep(image, question, field, config), sweep_view,
        control=_swept_option,
    ),
)  # fmt: skip


# --- runs of experiments --------------------------------------------------------------------------------------------


class ExperimentRun:
    """An experiment that is running, from findings to views.

    Args:
        experiment: turns a finding into a view.
        events: its findings, the same one again where there is none that is new; ``None`` while there is none at all.
    """

    def __init__(self, experiment: Experiment, events: Generator[Any]) -> None:
        self.events = events
        self._experiment = experiment
        self._finding: Any = None
        self._view: str | None = None

    def show(self, event: Any) -> Update | None:
        """Take in a finding. Return its view and the progress, if the finding is new."""
        if event is self._finding:
            return None
        self._finding = event
        progress, view = self._experiment.view(event)
        self._view = json.dumps(view, allow_nan=False)
        return self._view, info(progress)

    def end(self, ending: Ending) -> str | None:
        """Return the view of the last finding, whatever the ending; ``None`` if there was no finding."""
        return self._view

    def summary(self) -> None:
        """Return nothing: several answers are compared, and none of them is the run's."""


def experiment_kind(state: AppState, experiment: Experiment) -> RunKind:
    """Make the kind of run of an experiment; ``more`` of its requests is the input that only it needs."""

    def request(event: gr.EventData, reference: Any, question: str | None, more: Any, settings: Settings) -> RunRequest:
        own = experiment.read(state, more)
        return RunRequest(state.uploads.picture(reference), shorten_question(question), settings, own)

    def start(inputs: RunInputs) -> ExperimentRun:
        picture = seen_picture(inputs, state.backend_with(inputs.draft).sees)
        image, more = picture.open(), experiment.prepare(state, inputs)
        findings = experiment.start(state.lab_with(inputs.draft), image, inputs.messages, more, inputs.config)
        return ExperimentRun(experiment, findings)

    return RunKind(experiment.name, "the experiment", "What was found so far stays here.", request, start)


# --- layout -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """Components that experiments take their inputs from."""

    picture: gr.HTML  # its reference
    question: gr.Textbox
    settings: gr.HTML


def lab_section(state: AppState, inputs: Inputs) -> None:
    """Build the cards of all experiments. Nothing is computed before a click."""
    with gr.Column(elem_id="lab"):
        gr.HTML(**widgets.constant_arguments(_heading()), elem_id="lab-heading")
        for experiment in EXPERIMENTS:
            _card(state, experiment, inputs)


def _heading() -> str:
    about = "Experiments with your picture, your question and your settings. Each runs when you ask for it."
    return f'<h2 class="eyebrow">Lab</h2><p>{html.escape(about)}</p>'


def _card(state: AppState, experiment: Experiment, inputs: Inputs) -> None:
    title = f"<h3>{html.escape(experiment.title)}</h3><p>{html.escape(experiment.about)}</p>"
    with gr.Column(elem_classes="card experiment", elem_id=f"lab-{experiment.name}"):
        gr.HTML(**widgets.constant_arguments(title), elem_classes="about")
        with gr.Row(elem_classes="lab-controls"):
            more = experiment.control(state)
            run = gr.Button(experiment.button, size="sm", elem_classes="lab-run")
            stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="lab-stop")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
        result = gr.HTML(**result_arguments(), elem_classes="lab-said")
    values = [inputs.picture, inputs.question, more, inputs.settings]
    kind, controls = experiment_kind(state, experiment), RunControls(run, stop, note, result)
    connect_run(state.requests, kind, controls, [run.click], values)


def result_arguments() -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows a view; its value is JSON, empty before the first finding."""
    return component_arguments("lab.html", MODULES, MOUNT, plotly=PLOTLY_JS.as_posix())
