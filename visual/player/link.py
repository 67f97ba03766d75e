"""Links to a recorded example: ``?example=2-story&step=5``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from visual.player.recorded import Recorded


@dataclass(frozen=True, slots=True)
class ExampleLink:
    """A link to a recorded example.

    Args:
        race: the recorded example.
        show: the step to open with, from 0 and always one that exists; ``None``: the link names none.
        notice: what is wrong with the link, in one line; empty if nothing is.
    """

    race: Recorded
    show: int | None
    notice: str


def follow_link(query: Mapping[str, str], races: Sequence[Recorded]) -> ExampleLink | None:
    """Parse the example and step that an address names; ``None`` if it names no example.

    A name that no example bears leads to the first one, a step outside the run to its first or last.
    """
    name = query.get("example")
    if name is None or not races:
        return None
    race = next((race for race in races if race.name == name), None)
    if race is None:
        names = ", ".join(race.name for race in races)
        return ExampleLink(races[0], None, f"There is no example {name[:40]!r}; there are {names}.")
    step = query.get("step")
    if step is None:
        return ExampleLink(race, None, "")
    last = len(race.lead.steps)
    if not re.fullmatch(r"-?[0-9]{1,9}", step):
        return ExampleLink(race, None, f"The link asks for step {step[:40]!r}; steps are numbers from 1 to {last}.")
    return ExampleLink(race, min(max(int(step), 1), last) - 1, "")
