"""The card that compares two settings, A and B, on many prompts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gradio as gr

from visual.page import widgets
from visual.page.comparison_prompts import MAX_PROMPTS, PagePrompt, file_prompts
from visual.page.comparison_run import FILE, LINES, SCENES, Comparisons, comparison_kind
from visual.page.controls import FIELDS, Settings, described_settings
from visual.page.dialogue import Dialogues
from visual.page.lab import Inputs, LabState
from visual.page.notices import error, info, notice_arguments
from visual.page.race import RACE
from visual.page.runs import QUICK, RunControls, connect_run
from visual.page.upload_store import UploadStore
from visual.player.component import component_arguments
from visual.player.picture import data_address
from visual.player.race_frames import race_frames

MODULES: Final = ("files.js", "against.js")
MOUNT: Final = """
loaded.then(({ files, against }) =>
  against.mount({ element, props, watch, files, open: (given) => trigger("select", { given }) }));
"""
TITLE: Final = "A against B, on many prompts"
ABOUT: Final = (
    "Two settings answer the same questions, as two lanes of one race each. A row is a prompt; a click opens both runs"
    " in the player. The interval says how much the prompts leave open."
)
FIRST: Final = {"A": {"rule": "chain"}, "B": {}}  # what differs from the defaults at first
SIDE: Final = '<p class="side"><b>{}</b> <span></span></p>'
SHOW_SIDE: Final = """
const show = () => { element.querySelector("span").textContent = props.value; };
watch("value", show);
show();
"""
PASTED: Final = "Describe this image in detail.\nHow many objects are there?\nWhat is on the left?"


def comparison_card(
    lab: LabState, inputs: Inputs, toy: bool, shown: Sequence[Any], dialogues: Dialogues | None = None
) -> None:
    """Build the card. Nothing is computed before a click.

    Args:
        toy: the models know the toy world's scenes.
        shown: the picture's reference, picture, question and player: what opening a pair changes.
        dialogues: of the visitors, which do not go on from a pair.
    """
    title = f"<h3>{html.escape(TITLE)}</h3><p>{html.escape(ABOUT)}</p>"
    with gr.Column(elem_classes="card experiment", elem_id="against"):
        gr.HTML(**widgets.constant_arguments(title), elem_classes="about")
        a, b = (_side(name, inputs.settings) for name in FIRST)
        source, lines, scenes, uploaded = _prompts(toy, lab.uploads)
        with gr.Row(elem_classes="lab-controls"):
            run = gr.Button("Compare A and B", size="sm", elem_classes="lab-run")
            stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="lab-stop")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
        result = gr.HTML(**result_arguments(), elem_classes="lab-said")
    kept = Comparisons()
    values = [inputs.picture, source, lines, scenes, uploaded, a, b]
    controls = RunControls(run, stop, note, result)
    connect_run(lab.requests, comparison_kind(lab, kept), controls, [run.click], values)

    def open_pair(request: gr.Request, event: gr.EventData) -> tuple[Any, ...]:
        values = open_pair_row(lab, kept, event, request.session_hash or "", dialogues)
        return lab.uploads.with_reference(request.session_hash, values)

    result.select(open_pair, None, [*shown, note], **QUICK)


def open_pair_row(
    lab: LabState, kept: Comparisons, event: gr.EventData, session: str, dialogues: Dialogues | None = None
) -> tuple[Any, ...]:
    """Return picture source, picture, question and frames of the row that a click chose, and a notice.

    As with other races that were run before, the session's next follow-up goes on from this one.
    """
    given = (event._data or {}).get("given")
    name, number = given if isinstance(given, list) and len(given) == 2 else (None, None)
    try:
        prompt, race = kept.pair(name, number)
    except ValueError as refusal:
        return *(gr.skip() for _ in range(4)), error(f"This cannot be opened: {refusal}")
    lab.requests.cancel((session, RACE))
    if dialogues is not None:
        dialogues.show(session, race, own=True)
    address = data_address(prompt.picture.preview())
    return prompt.picture, address, prompt.text, race_frames(race, f"{race.name} of a comparison", address), ""


def _side(name: str, settings: Any) -> gr.HTML:
    """Build the line of one side: its settings in words, and a button that takes the present ones."""
    first = {field: info.default for field, info in FIELDS.items()} | FIRST[name]
    state = gr.HTML(**widgets.held_arguments(first))
    with gr.Row(elem_classes="against-side"):
        words = gr.HTML(
            described_settings(first)["summary"], html_template=SIDE.format(name), js_on_load=SHOW_SIDE,
            apply_default_css=False,
        )  # fmt: skip
        take = gr.Button(f"Take the present settings as {name}", size="sm", elem_classes="pill", min_width=60)
    note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
    take.click(_take_settings, settings, [state, words, note], **QUICK)
    return state


def _take_settings(settings: Settings) -> tuple[Any, Any, str]:
    """Return settings, words and notice; settings that are refused change only the notice."""
    described = described_settings(settings)
    if described["refused"]:
        return gr.skip(), gr.skip(), error(described["summary"])
    return settings, described["summary"], ""


def _prompts(toy: bool, uploads: UploadStore) -> tuple[gr.Radio, gr.Textbox, gr.Slider, gr.HTML]:
    """Build the choice of where prompts come from, with the controls of each source."""
    sources = [LINES, *([SCENES] if toy else []), FILE]
    chosen = SCENES if toy else LINES
    source = gr.Radio(sources, value=chosen, label="Prompts", elem_classes="against-source")
    lines = gr.Textbox(
        PASTED, label=f"A question a line, at most {MAX_PROMPTS}", lines=4, max_lines=MAX_PROMPTS,
        visible=chosen == LINES, max_length=10_000, elem_classes="against-lines",
    )  # fmt: skip
    scenes = gr.Slider(
        1, MAX_PROMPTS, value=5, step=1, label="Scenes", visible=chosen == SCENES, elem_classes="against-scenes"
    )
    uploaded = gr.HTML(**widgets.held_arguments(""))
    with gr.Column(visible=False) as upload:
        kinds = [".jsonl", ".zip"]
        file = gr.UploadButton("Upload .jsonl or .zip", size="sm", file_types=kinds, elem_id="prompts-file")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")

    def read(path: str | None, request: gr.Request) -> tuple[Any, str]:
        return _read(path, uploads, request.session_hash or "")

    file.upload(read, file, [uploaded, note], **QUICK)

    def show(now: str) -> list[Any]:
        return [gr.update(visible=now == one) for one in (LINES, SCENES, FILE)]

    source.change(show, source, [lines, scenes, upload], **QUICK)
    return source, lines, scenes, uploaded


def _read(path: str | None, uploads: UploadStore, session: str) -> tuple[Any, str]:
    """Return the reference of an uploaded file's prompts and a notice; a refused file changes only the notice."""
    try:
        if path is None:
            raise ValueError("no file came")
        prompts: tuple[PagePrompt, ...] = file_prompts(Path(path))
    except ValueError as refusal:
        return gr.skip(), error(f"This file cannot be used: {refusal}")
    return uploads.keep_prompts(session, prompts), info(f"{len(prompts)} prompts are ready.")


def result_arguments() -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows a comparison; its value is JSON, empty at first."""
    return component_arguments("against.html", MODULES, MOUNT)
