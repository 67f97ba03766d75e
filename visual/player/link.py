"""Links to a recorded example or a lesson: ``?example=2-story&step=5``, ``?lesson=3``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from visual.player.lessons import Lesson
from visual.player.recorded import Recorded


@dataclass(frozen=True, slots=True)
class RaceLink:
    """A link to a recorded example or a lesson.

    Args:
        race: the recorded example, or the lesson's race.
        show: the step to open with, from 0 and always one that exists; ``None``: the link names none.
        notice: what is wrong with the link, in one line; empty if nothing is.
    """

    race: Recorded
    show: int | None
    notice: str
    lesson: Lesson | None = None


def follow_link(
    query: Mapping[str, str], races: Sequence[Recorded], lessons: Sequence[Lesson] = ()
) -> RaceLink | None:
    """Parse the lesson, or the example and step, that an address names; ``None`` if it names neither.

    A lesson that is not there leads to the first one, as does a name that no example bears; a step outside the run
    leads to its first or last.
    """
    if (number := query.get("lesson")) is not None and lessons:
        return _follow_lesson(number, lessons)
    name = query.get("example")
    if name is None or not races:
        return None
    race = next((race for race in races if race.name == name), None)
    if race is None:
        names = ", ".join(race.name for race in races)
        return RaceLink(races[0], None, f"There is no example {name[:40]!r}; there are {names}.")
    step = query.get("step")
    if step is None:
        return RaceLink(race, None, "")
    last = len(race.lead.steps)
    if not re.fullmatch(r"-?[0-9]{1,9}", step):
        return RaceLink(race, None, f"The link asks for step {step[:40]!r}; steps are numbers from 1 to {last}.")
    return RaceLink(race, min(max(int(step), 1), last) - 1, "")


def _follow_lesson(number: str, lessons: Sequence[Lesson]) -> RaceLink:
    known = re.fullmatch(r"[0-9]{1,4}", number) and 1 <= int(number) <= len(lessons)
    lesson = lessons[int(number) - 1] if known else lessons[0]
    notice = "" if known else f"There is no lesson {number[:40]!r}; there are lessons 1 to {len(lessons)}."
    return RaceLink(lesson.race, lesson.text.step, notice, lesson)
