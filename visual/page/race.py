"""A race on the page: from decode events of both lanes to frames of the player, bundled in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from specllava.config import DecodingConfig
from specllava.metrics import RunTotals, summarise, unused_draft
from specllava.trace import NO_DRAFT, SPECULATIVE, TARGET_ONLY, DecodeTrace, RunInfo
from visual.page.app_state import AppState
from visual.page.controls import Settings
from visual.page.model_choice import chosen_models
from visual.page.notices import warning
from visual.page.pictures import SEEN, address_of, family_of
from visual.page.run_requests import RunRequest
from visual.page.runs import RunInputs, RunKind, Update, seen_picture
from visual.player.recorded import shorten_question
from visual.player.frames import Ending, FrameList
from visual.player.turns import DialoguePosition

RACE = "race"
FOLLOW = "follow"  # id of the button that asks a follow-up
SECONDS_PER_UPDATE = 0.5  # a browser on the same machine slows the lanes whenever it draws, and the longer one more


class RaceRun:
    """A race that is running.

    Args:
        events: of both lanes; drawn from and closed by the caller.
        collect: makes traces of the events so far.
        picture: of the race, as a data address.
        absent: why only the target runs; ``None`` if both lanes run.
        source: words for what runs.
        position: of the race in a dialogue.
    """

    def __init__(
        self,
        events: Generator[Any],
        collect: Callable[[list[Any]], dict[str, DecodeTrace]],
        picture: str | None = None,
        absent: str | None = None,
        source: str = "live run",
        position: DialoguePosition | None = None,
    ) -> None:
        lanes = (TARGET_ONLY, SPECULATIVE) if absent is None else (TARGET_ONLY,)
        self.events = events
        self._collect = collect
        self._frame_list = FrameList(source, live=True, picture=picture, lanes=lanes, absent=absent, position=position)
        self._past: list[Any] = []
        self._shown = time.monotonic()

    def show(self, event: Any) -> Update | None:
        """Take in an event. Return the frames so far if it is time for an update."""
        self._past.append(event)
        now = time.monotonic()
        if now - self._shown < SECONDS_PER_UPDATE:
            return None
        self._shown = now
        traces = self._collect(self._past)
        return self._frame_list.update(traces) or None, warning(_advice(traces))

    def end(self, ending: Ending) -> list[str] | None:
        """Return all frames, the last of them with charts and totals; ``None`` if no lane has begun."""
        return self._frame_list.update(self._collect(self._past), ending) or None

    def advice(self) -> str:
        """Return a line on a draft that is hardly ever right; empty for any other."""
        return _advice(self._collect(self._past))

    def summary(self) -> RunTotals | None:
        """Return the totals of the lane that answers, ``None`` if it has not begun."""
        traces = self._collect(self._past)
        answer = traces.get(SPECULATIVE) or traces.get(TARGET_ONLY)
        return None if answer is None else summarise([answer])


def _advice(traces: Mapping[str, DecodeTrace]) -> str:
    trace = traces.get(SPECULATIVE)
    return "" if trace is None else unused_draft(trace.setting.draft, trace.config.drafter, summarise([trace]))


def race_kind(state: AppState) -> RunKind:
    """Make the kind of run of a race: the visitor's settings against the target alone."""

    def request(event: gr.EventData, reference: Any, question: str | None, settings: Settings) -> RunRequest:
        follow = getattr(event.target, "elem_id", None) == FOLLOW
        return RunRequest(state.uploads.picture(reference), shorten_question(question), settings, follow)

    def start(inputs: RunInputs) -> RaceRun:
        backend = state.backend_with(inputs.draft)
        absent = speculation_off(backend.info, inputs.config)
        config = replace(inputs.config, drafter="none") if absent else inputs.config
        shown = seen_picture(inputs, backend.sees)
        picture = address_of(shown)
        seen = SEEN.get(family_of(state.pair), "") if shown.uploaded else ""
        source = f"live run: {seen[:1].lower()}{seen[1:-1]}" if seen else "live run"
        if state.dialogues is None:
            events = backend.race(shown.open(), inputs.messages, config)
            return RaceRun(events, backend.collect_race, picture, absent, source)
        asked = inputs.session, shown, inputs.question, config
        models = chosen_models(state.others, inputs.draft)
        chat = models.chat if models else None
        events, position = state.dialogues.begin(
            *asked, follow=bool(inputs.more), models=inputs.draft, make=chat, system=inputs.system
        )
        return RaceRun(events, backend.collect_race, picture, absent, source, position)

    return RunKind(RACE, "the race", "What is shown so far stays here.", request, start, RaceRun.advice)


def speculation_off(info: RunInfo, config: DecodingConfig) -> str | None:
    """Return why only the target will run; ``None`` if a drafter runs."""
    if config.drafter == "none":
        return "Speculation is off because Settings say that nobody drafts."
    if config.drafter == "model" and info.draft == NO_DRAFT:
        return (
            f"Speculation is off because the pair {info.pair} has no draft model. Under Settings, prompt-lookup"
            " drafts without one."
        )
    return None
