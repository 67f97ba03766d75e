"""Lessons: a recorded race each, a question about one step, the answer, and the part of the player that both are about.

``lessons.json`` lists them in order, ``[{"name", "title", "question", "answer", "step"}]`` with steps from 0.
It may also have ``race``, ``place``, ``phase`` and ``node``, whose defaults are those of :class:`LessonText`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from specllava.config import one_line
from visual.player.recorded import Recorded, read_recorded

LessonTarget = Literal["lanes", "timeline", "tree", "mask", "cache", "coin", "verdict", "grounding"]
Phase = Literal["root", "guess", "prune", "check", "accept", "keep"]
LessonWords = dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class LessonText:
    """Words of a lesson, and its target on the page.

    Args:
        step: counts from 0.
        race: name of the race file beside the list; "": the lesson's own name. Lessons may share a race.
        place: part of the player that the lesson is about.
        phase: phase of the step to open; ``None``: the result of the step.
        node: node to choose; ``None``: the one that decided the step.
    """

    name: str
    title: str
    question: str
    answer: str
    step: int
    race: str = ""
    place: LessonTarget = "tree"
    phase: Phase | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson: its words, its race, and its number among ``count`` lessons, from 1."""

    text: LessonText
    race: Recorded
    number: int = 1
    count: int = 1

    @property
    def words(self) -> LessonWords:
        """What the player shows and where."""
        text = self.text
        return {
            "title": text.title, "question": text.question, "answer": text.answer, "place": text.place,
            "step": text.step, "phase": text.phase, "node": text.node, "number": self.number, "count": self.count,
        }  # fmt: skip


_INDEX: TypeAdapter[tuple[LessonText, ...]] = TypeAdapter(tuple[LessonText, ...])


def load_lessons(folder: Path) -> tuple[Lesson, ...]:
    """Load the lessons of a folder, in order; none if there is no such folder.

    Raises:
        ValueError: an index or a race that cannot be read, or a step or node that the race has not; one line that
            names it.
    """
    index = folder / "lessons.json"
    if not index.is_file():
        return ()
    try:
        texts = _INDEX.validate_json(index.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{index.name} is not a list of lessons: {one_line(error)}") from error
    files = dict.fromkeys(text.race or text.name for text in texts)
    races = {file: read_recorded(folder / f"{file}.json") for file in files}
    return tuple(
        _check(Lesson(text, races[text.race or text.name], number, len(texts)))
        for number, text in enumerate(texts, start=1)
    )


def _check(lesson: Lesson) -> Lesson:
    text, steps = lesson.text, lesson.race.lead.steps
    if not 0 <= text.step < len(steps):
        raise ValueError(f"the lesson {text.name} is about step {text.step} of a race of {len(steps)} steps")
    nodes = len(steps[text.step].tree)
    if text.node is not None and not 0 <= text.node < nodes:
        raise ValueError(f"the lesson {text.name} is about node {text.node} of a tree of {nodes} nodes")
    return lesson
