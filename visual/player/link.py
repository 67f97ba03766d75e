"""Links to a recorded example or a lesson: ``?example=2-story&step=5``, ``?example=4-dialogue&turn=2&step=3``,
``?lesson=3``, ``?lesson=3&step=2``.

The browser reads the rest of an address: ``phase``, ``view``, ``present``, settings.
"""

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
        turn: of a dialogue, from 0 and always one that exists; the last where the link names none.
    """

    race: Recorded
    show: int | None
    notice: str
    lesson: Lesson | None = None
    turn: int = 0

    @property
    def shown(self) -> Recorded:
        """The turn of the race that is opened, as a race of its own."""
        return self.race.turns[self.turn]


def follow_link(query: Mapping[str, str], races: Sequence[Recorded], lessons: Sequence[Lesson] = ()) -> RaceLink | None:
    """Parse the lesson, or the example and step, that an address names; ``None`` if it names neither.

    An address that names a pair alone opens its first example, if it has one and the page does not open with it.
    A lesson opens at its own step if the address names none. One that is not there leads to the first one, as does a
    name that no example bears. A turn outside the dialogue or a step outside the run leads to its first or last.
    """
    if (number := query.get("lesson")) is not None and lessons:
        return _follow_lesson(number, query, lessons)
    name = query.get("example")
    if name is None or not races:
        own = next((race for race in races if race.lead.setting.pair == query.get("pair")), None)
        return None if own is None or own is races[0] else RaceLink(own, None, "", turn=len(own.later))
    race = next((race for race in races if race.name == name), None)
    if race is None:
        names = ", ".join(race.name for race in races)
        notice = f"There is no example {name[:40]!r}; there are {names}."
        return RaceLink(races[0], None, notice, turn=len(races[0].later))
    turn, wrong = _number(query, "turn", len(race.turns))
    turn = len(race.later) if turn is None else turn
    step, notice = _number(query, "step", len(race.turns[turn].lead.steps))
    return RaceLink(race, step, wrong or notice, turn=turn)


def _number(query: Mapping[str, str], what: str, last: int) -> tuple[int | None, str]:
    """Read a number from 1 to ``last`` as one from 0, ``None`` if there is none, and what is wrong with it."""
    given = query.get(what)
    if given is None:
        return None, ""
    if not re.fullmatch(r"-?[0-9]{1,9}", given):
        return None, f"The link asks for {what} {given[:40]!r}; {what}s are numbers from 1 to {last}."
    return min(max(int(given), 1), last) - 1, ""


def _follow_lesson(number: str, query: Mapping[str, str], lessons: Sequence[Lesson]) -> RaceLink:
    known = re.fullmatch(r"[0-9]{1,4}", number) and 1 <= int(number) <= len(lessons)
    lesson = lessons[int(number) - 1] if known else lessons[0]
    notice = "" if known else f"There is no lesson {number[:40]!r}; there are lessons 1 to {len(lessons)}."
    step, wrong = _number(query, "step", len(lesson.race.lead.steps))
    return RaceLink(lesson.race, lesson.text.step if step is None else step, notice or wrong, lesson)
