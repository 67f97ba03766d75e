"""The races that ship with the page, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specllava.trace import DecodeTrace
from visual.player.recorded import Recorded, read_recorded

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@cache
def shipped_races() -> tuple[Recorded, ...]:
    """Every recorded race of the examples and the lessons."""
    paths = [*ASSETS.glob("examples/*.json"), *ASSETS.glob("lessons/[0-9]*.json")]
    return tuple(read_recorded(path) for path in sorted(paths))


def shipped_traces() -> tuple[DecodeTrace, ...]:
    """The speculative lane of each of them."""
    return tuple(race.speculative for race in shipped_races() if race.speculative is not None)
