"""The lab below the player: a card per experiment, its handlers and its run."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from specllava.findings.sweep import SWEEP_VALUES
from visual.page import widgets
from visual.page.controls import Settings
from visual.page.experiments import EXPERIMENTS, Experiment
from visual.page.model_choice import AS_STARTED, Chosen, ModelChoices, chosen_models
from visual.page.notices import info, notice_arguments
from visual.page.picture_source import PictureSource
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import QUICK, RunControls, RunInputs, RunKind, Update, connect_run
from visual.page.upload_store import UNKNOWN, LostPicture, UploadStore
from visual.player.component import component_arguments
from visual.player.frames import Ending
from visual.player.picture import data_address
from visual.player.question import shorten_question
from visual.player.static_files import PLOTLY_JS

if TYPE_CHECKING:
    from specllava.lab import Lab

MODULES = ("charts.js", "player.js", "compared.js", "lab.js")
MOUNT = """
loaded.then(({ charts, player, compared, lab }) =>
  lab.mount({ element, props, watch, charts, player, compared, choose: (given) => trigger("select", { given }) }));
"""


@dataclass(frozen=True)
class LabState:
    """State that the visitors of one lab share.

    Args:
        experiments: waits for the models; raises if they could not be loaded.
        another: makes a picture that is not the visitor's.
        requests: races and experiments that wait or run, on the whole page.
        others: experiments on other models.
        choices: what these models are called.
        uploads: of the visitors.
    """

    experiments: Callable[[], Lab]
    another: Callable[[], PictureSource]
    requests: RunRequests
    others: Mapping[Chosen, Callable[[], Lab]] = field(default_factory=dict)
    choices: ModelChoices = field(default_factory=ModelChoices)
    uploads: UploadStore = field(default_factory=UploadStore)

    def on(self, models: Chosen) -> Lab:
        """Return the experiments on the models that were chosen.

        Raises:
            ValueError: there are none.
        """
        return (chosen_models(self.others, models) or self.experiments)()

    def drafts(self, models: Chosen) -> dict[str, Lab]:
        """Return the experiments with each draft of the target, by its name, in the precision that was chosen."""
        if models.pair != AS_STARTED:
            return {models.pair: self.on(models)}
        drafts = self.choices.all_drafts().items()
        return {name: self.on(replace(models, draft=draft)) for name, draft in drafts}


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


def experiment_kind(lab: LabState, experiment: Experiment) -> RunKind:
    """Make the kind of run of an experiment. ``more`` is its card's own control; for forks, a click's tokens."""

    def request(event: gr.EventData, reference: Any, question: str | None, more: Any, settings: Settings) -> RunRequest:
        own = chosen(event) if experiment.name == "fork" else more
        if experiment.name == "seeing":
            own = lab.uploads.picture(more) or LostPicture(UNKNOWN)
        return RunRequest(lab.uploads.picture(reference), shorten_question(question), settings, own)

    def start(inputs: RunInputs) -> ExperimentRun:
        most = lab.requests.limits.new_tokens
        if experiment.name == "fork" and len(inputs.more) > most:
            raise ValueError(f"{len(inputs.more):,} tokens to go on from, and at most {most:,} are read: click earlier")
        image, experiments = inputs.picture.open(), lab.on(inputs.models)
        more = lab.drafts(inputs.models) if experiment.name == "drafters" else inputs.more
        findings = experiment.start(experiments, image, inputs.question, more, inputs.config)
        return ExperimentRun(experiment, findings)

    return RunKind(experiment.name, "the experiment", "What was found so far stays here.", request, start)


def chosen(event: gr.EventData) -> list[int]:
    """Return the prefix of token ids that a click on the player or view chose; none for the button.

    Raises:
        gr.Error: what came is no list of whole numbers.
    """
    tokens = (event._data or {}).get("given", [])
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise gr.Error("tokens to go on from must be whole numbers")
    return tokens


# --- layout -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """Components that experiments take their inputs from."""

    picture: gr.HTML  # its reference
    question: gr.Textbox
    settings: gr.HTML
    player: gr.HTML  # whose ``select`` names a token to go on from


def lab_section(lab: LabState, inputs: Inputs) -> None:
    """Build the cards of all experiments. Nothing is computed before a click."""
    with gr.Column(elem_id="lab"):
        gr.HTML(**widgets.constant_arguments(_heading()), elem_id="lab-heading")
        for experiment in EXPERIMENTS:
            _card(lab, experiment, inputs)


def _heading() -> str:
    about = "Experiments with your picture, your question and your settings. Each runs when you ask for it."
    return f'<h2 class="eyebrow">Lab</h2><p>{html.escape(about)}</p>'


def _card(lab: LabState, experiment: Experiment, inputs: Inputs) -> None:
    title = f"<h3>{html.escape(experiment.title)}</h3><p>{html.escape(experiment.about)}</p>"
    with gr.Column(elem_classes="card experiment", elem_id=f"lab-{experiment.name}"):
        gr.HTML(**widgets.constant_arguments(title), elem_classes="about")
        with gr.Row(elem_classes="lab-controls"):
            more = _more(lab, experiment)
            run = gr.Button(experiment.button, size="sm", elem_classes="lab-run")
            stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="lab-stop")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
        result = gr.HTML(**result_arguments(), elem_classes="lab-said")
    clicks = [run.click, *([result.select, inputs.player.select] if experiment.name == "fork" else [])]
    values = [inputs.picture, inputs.question, more, inputs.settings]
    connect_run(lab.requests, experiment_kind(lab, experiment), RunControls(run, stop, note, result), clicks, values)


def _more(lab: LabState, experiment: Experiment) -> Any:
    """Build the control that only this experiment has; an empty state where there is none."""
    if experiment.name == "knob":
        fields = [(name.replace("_", " "), name) for name in SWEEP_VALUES]
        return gr.Radio(fields, value=fields[0][1], show_label=False, container=False, label="Knob", elem_id="knob")
    if experiment.name != "seeing":
        return gr.State([])
    other = lab.another()
    reference = gr.HTML(**widgets.held_arguments(lab.uploads.reference("", other)))
    about = "The other picture, which only the draft sees"
    shown = gr.HTML(**widgets.picture_arguments(data_address(other.preview()), about), elem_id="other")
    button = gr.Button("Another one", size="sm", elem_classes="pill")

    def draw(request: gr.Request) -> tuple[Any, ...]:
        drawn = lab.another()
        return lab.uploads.with_reference(request.session_hash, (drawn, data_address(drawn.preview())))

    button.click(draw, None, [reference, shown], **QUICK)
    return reference


def result_arguments() -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows a view; its value is JSON, empty before the first finding."""
    return component_arguments("lab.html", MODULES, MOUNT, plotly=PLOTLY_JS.as_posix())
