"""The card that compares two settings, A and B, on many prompts, and its runs."""

from __future__ import annotations

import base64
import html
import io
import json
import uuid
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import gradio as gr

from specllava.core.growth.rules.chain import CHAIN_OPTIONS
from specllava.core.race_file import write_zip
from specllava.findings.comparison import PairedComparison
from specllava.findings.comparison_tables import race_files, records, summary_lines, to_csv, to_markdown
from visual.page import widgets
from visual.page.app_state import AppState
from visual.page.comparison_prompts import MAX_PROMPTS, PagePrompt, file_prompts, line_prompts, questions, scene_prompts
from visual.page.controls import FIELDS, Settings, decoding_config, described_settings
from visual.page.lab import Inputs
from visual.page.model_choice import read_models
from visual.page.notices import error, info, notice_arguments
from visual.page.pictures import SEEN, PictureSource, address_of, family_of
from visual.page.replays import replace_race
from visual.page.run_requests import RunRequest
from visual.page.runs import QUICK, RunControls, RunInputs, RunKind, Update, connect_run
from visual.page.uploads import LOST, UploadStore
from visual.player.bounds import check_question
from visual.player.component import component_arguments
from visual.player.frames import Ending
from visual.player.race_frames import race_frames
from visual.player.recorded import Recorded, recorded_race

NAME: Final = "against"
KEPT: Final = 16  # comparisons of all visitors whose pairs can be opened
LINES, SCENES, FILE = "Lines about the present picture", "Toy scenes", "A file"
COLUMNS: Final = (  # heading, field of the record, and how the table writes it
    ("#", "number", "whole"), ("prompt", "prompt", "text"), ("τ A", "tau_a", "number"), ("τ B", "tau_b", "number"),
    ("Δ τ", "tau_ratio", "change"), ("passes A", "passes_a", "whole"), ("passes B", "passes_b", "whole"),
    ("Δ speed by the clock", "speed_ratio", "change"),
    ("tokens", "same", "same"),
)  # fmt: skip
MODULES: Final = ("files.js", "tables.js", "pays_math.js", "against.js")
MOUNT: Final = """
loaded.then((modules) =>
  modules.against.mount({ element, props, watch, modules, open: (given) => trigger("select", { given }) }));
"""
TITLE: Final = "A against B, on many prompts"
ABOUT: Final = (
    "Two settings answer the same questions, as two lanes of one race each. A row is a prompt; a click opens both runs"
    " in the player. The interval says how much the prompts leave open."
)
FIRST: Final = {"A": CHAIN_OPTIONS, "B": {}}  # what differs from the defaults at first
SIDE: Final = '<p class="side"><b>{}</b> <span></span></p>'
SHOW_SIDE: Final = """
const show = () => { element.querySelector("span").textContent = props.value; };
watch("value", show);
show();
"""
# A row's runs open far above their row; one that cannot be opened has its notice beside it.
SHOW_PLAYER: Final = """
(note) => {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (JSON.parse(note || "{}").kind === "info") document.querySelector(".player .race").scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}
"""  # noqa: E501
PASTED: Final = "Describe this image in detail.\nHow many objects are there?\nWhat is on the left?"
View = dict[str, Any]


@dataclass(frozen=True)
class ComparisonRequest:
    """Request for a comparison, as a click sends it, unchecked.

    Args:
        source: :data:`LINES`, :data:`SCENES` or :data:`FILE`.
        uploaded: prompts of the visitor's file; ``None`` if they are no longer kept.
        a: settings of A; those of B are the request's.
    """

    source: str
    lines: str
    scenes: float
    uploaded: Sequence[PagePrompt] | None
    a: Settings

    def prompts(self, picture: PictureSource | None) -> tuple[PagePrompt, ...]:
        """Return the prompts of the source; a ``ValueError`` says what the visitor can change."""
        if self.source == FILE:
            if self.uploaded is None:
                raise ValueError(LOST["prompts"])
            if not self.uploaded:
                raise ValueError("upload a file with prompts first")
            return tuple(self.uploaded)
        return scene_prompts(int(self.scenes)) if self.source == SCENES else line_prompts(self.lines, picture)


class Comparisons:
    """The latest comparisons of all visitors, by ids that only their own pages know; the oldest goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[PairedComparison, Sequence[PagePrompt]]] = OrderedDict()
        self._lock = Lock()

    def keep(self, name: str, found: PairedComparison, prompts: Sequence[PagePrompt]) -> None:
        """Keep the rows so far."""
        with self._lock:
            self._kept[name] = found, prompts
            self._kept.move_to_end(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def pair(self, name: Any, number: Any) -> tuple[PagePrompt, Recorded]:
        """Return the prompt of a row, from 0, and its race of A and B.

        Raises:
            ValueError: no such row, or no longer.
        """
        found, prompts = self._kept.get(name, (None, ())) if isinstance(name, str) else (None, ())
        if found is None:
            raise ValueError("this comparison is no longer kept: run it again")
        if type(number) is not int or not 0 <= number < len(found.rows):
            raise ValueError("there is no such row")
        document = found.rows[number].race
        if document is None:
            raise ValueError("the runs of this row were not kept")
        return prompts[number], recorded_race(f"prompt {number + 1}", document.encode())


class ComparisonRun:
    """A comparison that is running, from findings to views."""

    def __init__(self, events: Generator[PairedComparison], prompts: Sequence[PagePrompt], kept: Comparisons) -> None:
        self.events = events
        self._prompts = prompts
        self._kept = kept
        self._name = uuid.uuid4().hex
        self._found: PairedComparison | None = None

    def show(self, event: PairedComparison) -> Update | None:
        """Take in a finding. Return its table and the progress, if the finding is new."""
        if event is self._found:
            return None
        self._found = event
        self._kept.keep(self._name, event, self._prompts)
        return view_json(comparison_view(event, self._name)), info(f"{len(event.rows)} of {event.prompts} prompts")

    def end(self, ending: Ending) -> str | None:
        """Return the table with its files; ``None`` if there was no finding."""
        if self._found is None:
            return None
        return view_json(comparison_view(self._found, self._name) | {"files": files(self._found)})

    def summary(self) -> None:
        """Return nothing: many answers are compared, and none of them is the run's."""


def comparison_kind(state: AppState, kept: Comparisons) -> RunKind:
    """Make the kind of run of a comparison; ``more`` of its requests are :class:`ComparisonRequest`."""

    def request(
        event: gr.EventData, reference: Any, source: str, lines: str | None, scenes: float, uploaded: Any,
        a: Settings, b: Settings,
    ) -> RunRequest:  # fmt: skip
        wanted = ComparisonRequest(source, lines or "", scenes, state.uploads.prompts(uploaded), a)
        return RunRequest(state.uploads.picture(reference), "", b, wanted)

    def start(inputs: RunInputs) -> ComparisonRun:
        prompts, limits = inputs.more.prompts(inputs.picture), state.requests.limits
        if len(prompts) > limits.prompts:
            raise ValueError(f"{len(prompts)} prompts, and at most {limits.prompts} are compared here: choose fewer")
        for prompt in prompts:
            check_question(prompt.text, limits.prompt_characters)
        a, b = decoding_config(inputs.more.a, limits), inputs.config
        name = read_models(inputs.more.a)
        ours, theirs = state.lab_on(name), None if name == inputs.models else state.lab_on(inputs.models)
        events = ours.compare(questions(prompts), len(prompts), a, b, theirs)
        return ComparisonRun(events, prompts, kept)

    return RunKind(NAME, "the comparison", "The prompts that are finished stay here.", request, start)


def comparison_view(found: PairedComparison, name: str) -> View:
    """Return the table as data for ``static/against.js``: rows with raw values, so that the browser can sort them."""
    rows = records(found)
    return {
        "id": name, "a": found.a, "b": found.b, "lines": summary_lines(found) if rows else [],
        "columns": [column for column in COLUMNS if any(row[column[1]] is not None for row in rows)], "rows": rows,
    }  # fmt: skip


def files(found: PairedComparison) -> dict[str, str]:
    """Return the files to save: tables as text, and the archive of race files in base64."""
    archive = io.BytesIO()
    write_zip(archive, race_files(found))
    packed = base64.b64encode(archive.getvalue()).decode()
    return {"csv": to_csv(found), "md": to_markdown(found), "zip": packed} if found.rows else {}


def view_json(view: View) -> str:
    """Write a view as the component's value."""
    return json.dumps(view, ensure_ascii=False, allow_nan=False)


def comparison_card(state: AppState, inputs: Inputs, shown: Sequence[Any]) -> None:
    """Build the card. Nothing is computed before a click.

    Args:
        shown: the picture's reference, picture, question and player: what opening a pair changes.
    """
    title = f"<h3>{html.escape(TITLE)}</h3><p>{html.escape(ABOUT)}</p>"
    with gr.Column(elem_classes="card experiment", elem_id="against"):
        gr.HTML(**widgets.constant_arguments(title), elem_classes="about")
        a, b = (_side(name, inputs.settings) for name in FIRST)
        source, lines, scenes, uploaded = _prompts(family_of(state.pair) in SEEN, state.uploads)
        with gr.Row(elem_classes="lab-controls"):
            run = gr.Button("Compare A and B", size="sm", elem_classes="lab-run")
            stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="lab-stop")
        note = gr.HTML(**notice_arguments(), elem_classes="lab-said")
        result = gr.HTML(**result_arguments(), elem_classes="lab-said")
    kept = Comparisons()
    values = [inputs.picture, source, lines, scenes, uploaded, a, b]
    controls = RunControls(run, stop, note, result)
    connect_run(state.requests, comparison_kind(state, kept), controls, [run.click], values)

    def open_pair(request: gr.Request, event: gr.EventData) -> tuple[Any, ...]:
        values = open_pair_row(state, kept, event, request.session_hash or "")
        return state.uploads.with_reference(request.session_hash, values)

    opened = result.select(open_pair, None, [*shown, note], **QUICK)
    opened.then(None, note, None, js=SHOW_PLAYER, api_visibility="private")


def open_pair_row(state: AppState, kept: Comparisons, event: gr.EventData, session: str) -> tuple[Any, ...]:
    """Return picture source, picture, question and frames of the row that a click chose, and a notice.

    As with other races that were run before, the session's next follow-up goes on from this one.
    """
    given = (event._data or {}).get("given")
    name, number = given if isinstance(given, list) and len(given) == 2 else (None, None)
    try:
        prompt, race = kept.pair(name, number)
    except ValueError as refusal:
        return *(gr.skip() for _ in range(4)), error(f"This cannot be opened: {refusal}")
    assert isinstance(number, int)  # anything else was refused
    replace_race(state, session, race, own=True)
    address = address_of(prompt.picture)
    said = info(f"Prompt {number + 1} is open in the player above, A against B word by word below its tree.")
    return prompt.picture, address, prompt.text, race_frames(race, f"{race.name} of a comparison", address), said


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
