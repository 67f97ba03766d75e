"""Races that were run before, as the page shows them again and again: made once, not at every click."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from visual.player.frames import shown_anew
from visual.player.recorded import Recorded

Lesson = Mapping[str, str]
Made = tuple[Any, ...]  # what the page's widgets get, the player's frames last
MOST = 64  # links may ask for any step of a race


class Replays:
    """What the page shows of a race at a step, with a lesson or without. Handlers share it across threads.

    Args:
        make: of a race, a step (``None``: the most instructive one) and a lesson's words.
    """

    def __init__(self, make: Callable[[Recorded, int | None, Lesson | None], Made]) -> None:
        self._make = make
        self._made: dict[tuple[int, int | None, str | None], tuple[Recorded, Made]] = {}

    def show(self, race: Recorded, step: int | None = None, lesson: Lesson | None = None) -> Made:
        """The same as last time, with an id of its own, so that the player begins anew."""
        key = (id(race), step, lesson["title"] if lesson else None)
        made = self._made.get(key)
        if made is None:
            made = race, self._make(race, step, lesson)  # the race is held, so that its id stays its own
            if len(self._made) >= MOST:
                self._made.clear()
            self._made[key] = made
        *before, frames = made[1]
        return *before, shown_anew(frames)
