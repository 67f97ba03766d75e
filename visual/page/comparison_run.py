"""A comparison of A and B on many prompts while it runs: its requests, its table, and the pairs that can be opened."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import gradio as gr

from specllava.core.race_file import write_zip
from specllava.findings.comparison import PairedComparison
from specllava.findings.comparison_tables import race_files, records, summary_lines, to_csv, to_markdown
from visual.page.comparison_prompts import PagePrompt, line_prompts, questions, scene_prompts
from visual.page.controls import Settings, decoding_config
from visual.page.lab import LabState
from visual.page.model_choice import read_models
from visual.page.notices import info
from visual.page.picture_source import PictureSource
from visual.page.run_requests import RunRequest
from visual.page.runs import RunInputs, RunKind, Update
from visual.page.upload_store import LOST
from visual.player.frames import Ending
from visual.player.question import check_question
from visual.player.recorded import Recorded, recorded_race

NAME: Final = "against"
KEPT: Final = 16  # comparisons of all visitors whose pairs can be opened
LINES, SCENES, FILE = "Lines about the present picture", "Toy scenes", "A file"
COLUMNS: Final = (  # heading, field of the record, and how the table writes it
    ("#", "number", "whole"), ("prompt", "prompt", "text"), ("τ A", "tau_a", "number"), ("τ B", "tau_b", "number"),
    ("Δ τ", "tau_ratio", "change"), ("passes A", "passes_a", "whole"), ("passes B", "passes_b", "whole"),
    ("Δ speed by passes", "counted_ratio", "change"), ("Δ speed by the clock", "speed_ratio", "change"),
    ("tokens", "same", "same"),
)  # fmt: skip
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
        """Keep what was found so far."""
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


def comparison_kind(lab: LabState, kept: Comparisons) -> RunKind:
    """Make the kind of run of a comparison; ``more`` of its requests are :class:`ComparisonRequest`."""

    def request(
        event: gr.EventData, reference: Any, source: str, lines: str | None, scenes: float, uploaded: Any,
        a: Settings, b: Settings,
    ) -> RunRequest:  # fmt: skip
        wanted = ComparisonRequest(source, lines or "", scenes, lab.uploads.prompts(uploaded), a)
        return RunRequest(lab.uploads.picture(reference), "", b, wanted)

    def start(inputs: RunInputs) -> ComparisonRun:
        prompts, limits = inputs.more.prompts(inputs.picture), lab.requests.limits
        if len(prompts) > limits.prompts:
            raise ValueError(f"{len(prompts)} prompts, and at most {limits.prompts} are compared here: choose fewer")
        for prompt in prompts:
            check_question(prompt.text, limits.prompt_characters)
        a, b = decoding_config(inputs.more.a, limits), inputs.config
        name = read_models(inputs.more.a)
        ours, theirs = lab.on(name), None if name == inputs.models else lab.on(inputs.models)
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
    """Return what can be saved: tables as text, and the archive of race files in base64."""
    archive = io.BytesIO()
    write_zip(archive, race_files(found))
    packed = base64.b64encode(archive.getvalue()).decode()
    return {"csv": to_csv(found), "md": to_markdown(found), "zip": packed} if found.rows else {}


def view_json(view: View) -> str:
    """Write a view as the component's value."""
    return json.dumps(view, ensure_ascii=False, allow_nan=False)
