"""A race on the page: decode events of both lanes in, frames for the player out, bundled in time. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import gradio as gr

from specllava.config import DecodingConfig
from specllava.trace import NO_DRAFT, DecodeTrace, RunInfo
from visual.page.app_state import AppState
from visual.page.runs import RunInputs, RunKind, RunRequest, Update
from visual.player.frames import ALONE, TOGETHER, Ending, FrameList
from visual.player.picture import PictureSource, data_address
from visual.player.question import shorten_question

RACE = "race"
SECONDS_PER_UPDATE = 0.5  # a browser on the same machine slows the lanes whenever it draws, and the longer one more


class RaceRun:
    """A race that is running.

    Args:
        events: what the lanes do; only held here, to be drawn from and closed by others.
        collect: the traces that events amount to so far.
        picture: what the models look at, as a data address.
        alone: only the target runs; why nobody drafts for it.
    """

    def __init__(
        self,
        events: Generator[Any],
        collect: Callable[[list[Any]], dict[str, DecodeTrace]],
        picture: str | None = None,
        alone: str | None = None,
    ) -> None:
        lanes = (ALONE, TOGETHER) if alone is None else (ALONE,)
        self.events = events
        self._collect = collect
        self._frame_list = FrameList("live run", live=True, picture=picture, lanes=lanes, absent=alone)
        self._seen: list[Any] = []
        self._shown = time.monotonic()

    def show(self, event: Any) -> Update | None:
        """Take in an event. Returns the frames so far if it is time for an update."""
        self._seen.append(event)
        now = time.monotonic()
        if now - self._shown < SECONDS_PER_UPDATE:
            return None
        self._shown = now
        return self._frame_list.update(self._collect(self._seen)) or None, ""

    def end(self, ending: Ending) -> list[str] | None:
        """All frames, the last of them with charts and totals; ``None`` if no lane has begun."""
        return self._frame_list.update(self._collect(self._seen), ending) or None


def race_kind(state: AppState) -> RunKind:
    """Races as the page runs them: the visitor's settings against the target alone."""

    def request(event: gr.EventData, picture: PictureSource | None, question: str | None, *values: Any) -> RunRequest:
        return RunRequest(picture, shorten_question(question), values)

    def start(inputs: RunInputs) -> RaceRun:
        backend = state.backend()
        alone = speculation_off(backend.info, inputs.config)
        config = replace(inputs.config, drafter="none") if alone else inputs.config
        shown = data_address(inputs.picture.shown())
        return RaceRun(backend.race(inputs.picture.open(), inputs.question, config), backend.collect_race, shown, alone)

    return RunKind(RACE, "the race", "What is shown so far stays here.", request, start)


def speculation_off(setting: RunInfo, config: DecodingConfig) -> str | None:
    """Why only the target will run; ``None`` if somebody drafts for it."""
    if config.drafter == "none":
        return "Speculation is off because Settings say that nobody drafts."
    if config.drafter == "model" and setting.draft == NO_DRAFT:
        return (
            f"Speculation is off because the pair {setting.pair} has no draft model. Under Settings, prompt-lookup"
            " drafts without one."
        )
    return None
