"""Races that were run before, as the page shows them: examples, lessons, a visitor's file, a link."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from specllava.models.images import open_image
from visual.page.app_state import AppState
from visual.page.notices import error, failure, info, warning
from visual.page.pictures import Picture
from visual.page.race import RACE
from visual.player.encoding import data_address
from visual.player.frames import with_new_id
from visual.player.link import follow_link
from visual.player.race_frames import race_frames
from visual.player.recorded import Recorded, read_recorded

log = logging.getLogger("specllava.page")
LessonWords = Mapping[str, object]
Values = tuple[Any, ...]  # of the page's picture source, image, question and player, in this order
MAX_REPLAYS = 64  # held at once: links may ask for any step of a race


def race_values(
    state: AppState,
    race: Recorded,
    step: int | None = None,
    lesson: LessonWords | None = None,
    turn: int | None = None,
) -> Values:
    """Make the page's values of a race that was run before.

    Args:
        step: the one to open with, from 0; the most instructive one if it is not given.
        lesson: what it is to teach.
        turn: of a dialogue, from 0; the last one if it is not given.
    """
    own = any(race is one for one in state.recorded)
    source = "recorded run" if own or lesson else f"from {race.name}.json"
    shown = len(race.later) if turn is None else turn
    drawn = {file: data_address(open_image(file)) for file in race.pictures if file}
    pictures = [drawn[file] if file else None for file in race.pictures]
    name = race.name if own else None
    frames = race_frames(race, source, pictures[0], name, step, lesson, shown, pictures)
    file = race.pictures[shown]
    return Picture(file=str(file)) if file else None, pictures[shown], race.turns[shown].prompt, frames


class RaceReplays:
    """A cache of the page's values by race, step and lesson, so that a click makes none anew. Threads share it.

    Args:
        make: :func:`race_values` of a page.
    """

    def __init__(self, make: Callable[[Recorded, int | None, LessonWords | None, int | None], Values]) -> None:
        self._make = make
        self._made: dict[tuple[int, int | None, str | None, int | None], tuple[Recorded, Values]] = {}

    def show(
        self, race: Recorded, step: int | None = None, lesson: LessonWords | None = None, turn: int | None = None
    ) -> Values:
        """Return the values of a race, with frames of a new id, so that the player begins anew."""
        key = (id(race), step, str(lesson["title"]) if lesson else None, turn)
        made = self._made.get(key)
        if made is None:
            made = race, self._make(race, step, lesson, turn)  # the race is held, so that no other gets its id
            if len(self._made) >= MAX_REPLAYS:
                self._made.clear()
            self._made[key] = made
        *before, frames = made[1]
        return *before, with_new_id(frames)


def replace_race(state: AppState, session: str, race: Recorded, own: bool = False) -> None:
    """Cancel a session's race and let its next follow-up go on from one that was run before.

    Args:
        own: as of :class:`~visual.page.dialogue.Dialogue`.
    """
    state.requests.cancel((session, RACE))
    if state.dialogues is not None:
        state.dialogues.show(session, race, own)


def open_race_file(state: AppState, path: str | None, session: str) -> tuple[Any, ...]:
    """Read a visitor's race file. Returns the page's values and a notice, and cancels the session's own race.

    A file that cannot be shown changes only the notice.
    """
    try:
        if path is None:
            raise ValueError("no file came")
        race = read_recorded(Path(path), state.limits.trace_bytes)
        parts = race_values(state, race)
    except ValueError as refusal:
        return *(gr.skip() for _ in range(4)), error(f"This file cannot be opened: {refusal}")
    except Exception:
        log.exception("a race file could not be drawn")
        return *(gr.skip() for _ in range(4)), failure("This file could not be drawn.")
    replace_race(state, session, race, own=True)
    return *parts, info(race.filled)


def follow_address(
    state: AppState, replays: RaceReplays, query: Mapping[str, str], session: str = ""
) -> tuple[Any, ...]:
    """Return values and notice for the example or lesson of the page's address; nothing changes if it names none.

    A session's next follow-up goes on from what its page opens with.
    """
    link = follow_link(query, state.recorded, state.lessons)
    if state.dialogues is not None:
        state.dialogues.show(session, link.race if link else state.first)
    if link is None:
        return tuple(gr.skip() for _ in range(5))
    words = link.lesson.words if link.lesson else None
    return *replays.show(link.race, link.show, words, link.turn), warning(link.notice)
