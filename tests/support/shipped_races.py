"""The races that ship with the page, read once, and what the player is sent of a race."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from visual.player.frames import race_frames
from visual.player.recorded import Recorded, read_recorded

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@cache
def shipped_races() -> tuple[Recorded, ...]:
    """Every recorded race of the examples and the lessons that the entropy rule grew and nobody drew by chance."""
    paths = [*ASSETS.glob("examples/*.json"), *ASSETS.glob("lessons/*.json")]
    races = [read_recorded(path) for path in sorted(paths) if path.stem != "lessons"]
    return tuple(
        race for race in races
        if (race.lead.rule or race.lead.config.rule) == "entropy" and race.lead.config.keeps_tokens
    )  # fmt: skip


def frames_of(race: Recorded, toured: bool = False) -> list[dict[str, Any]]:
    """The frames that the player is sent, read."""
    return [json.loads(frame) for frame in race_frames(race, toured=toured)]


def end_of(frames: list[dict[str, Any]]) -> dict[str, Any]:
    return next(frame for frame in frames if frame["kind"] == "end")
