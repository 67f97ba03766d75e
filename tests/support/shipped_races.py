"""The races that ship with the page, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specllava.trace import DecodeTrace
from support.visual_traces import synthetic_race
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


def shipped_traces() -> tuple[DecodeTrace, ...]:
    """The speculative lane of each of them."""
    return tuple(race.speculative for race in shipped_races() if race.speculative is not None)


def shown_traces(seeds: int = 6) -> list[DecodeTrace]:
    """The shipped speculative lanes and synthetic ones."""
    return [*shipped_traces(), *(synthetic_race(seed)["speculative"] for seed in range(seeds))]
