"""Frames of a race file, for page and saved page: one run, a dialogue, or side B of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specllava.trace import DecodeTrace
from visual.player.encoding import frame_json
from visual.player.frames import recorded_frames
from visual.player.recorded import Recorded
from visual.player.turns import DialoguePosition, dialogue_id, recorded_turns


def race_frames(
    race: Recorded, source: str = "recorded run", picture: str | None = None, example: str | None = None,
    show: int | None = None, lesson: Mapping[str, object] | None = None, turn: int | None = None,
    pictures: Sequence[str | None] = (),
) -> list[str]:  # fmt: skip
    """Make all frames of a race file; arguments as of :class:`~visual.player.frames.FrameList`.

    Of a comparison they are those of B, and ``source`` says so. Of a dialogue they are those of one turn; its ``end``
    has those of the others by number, ``held``, without files.

    Args:
        turn: of a dialogue, from 0; the last one if it is not given.
        pictures: picture of each turn of a dialogue, instead of ``picture``.
    """
    if race.later:
        return _dialogue_frames(race, len(race.later) if turn is None else turn, source, pictures, example, show)
    if race.b is None:
        position = DialoguePosition(dialogue_id(recorded_turns(race)))
        return recorded_frames(race.target_only, race.speculative, source, picture, example, show, lesson, position)
    side = f"{source}, side B of a comparison: {race.b.name}"
    return recorded_frames(*_lanes(race.target_only, race.b.trace), side, picture, example, show, lesson)


def _dialogue_frames(
    race: Recorded, shown: int, source: str, pictures: Sequence[str | None], example: str | None, show: int | None
) -> list[str]:
    turns = recorded_turns(race)
    name = dialogue_id(turns)
    lists = []
    for number, turn in enumerate(turns):
        position = DialoguePosition(name, turns[:number], turns[number + 1 :], turn.image is not None)
        picture = pictures[number] if pictures else None
        step = show if number == shown else None
        lanes = turn.target_only, turn.speculative
        lists.append(recorded_frames(*lanes, source, picture, example, step, position=position))
    *frames, end = lists[shown]
    held = {number: [*one[:-1], _with(one[-1], {"file": None})] for number, one in enumerate(lists) if number != shown}
    return [*frames, _with(end, {"held": held})]


def _lanes(target_only: DecodeTrace | None, side: DecodeTrace) -> tuple[DecodeTrace | None, DecodeTrace | None]:
    """Return the lanes of one side's race: beside the target alone, unless the side is one itself."""
    alone = side.drafter is None and side.config.drafter == "none"
    return (side, None) if alone else (target_only, side)


def _with(frame: str, more: dict[str, Any]) -> str:
    return frame_json(json.loads(frame) | more)
