"""Guided examples: a recorded race each, a question about one step, and the answer.

``lessons.json`` lists them in order, ``[{"name", "title", "question", "answer", "step"}]``, with steps from 0; the race
of each is the race file of that name beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from specllava.config import one_line
from visual.player.recorded import Recorded, read_recorded


@dataclass(frozen=True, slots=True)
class LessonText:
    """The words of a lesson. ``step`` counts from 0."""

    name: str
    title: str
    question: str
    answer: str
    step: int


@dataclass(frozen=True, slots=True)
class Lesson:
    """A guided example: its words and its race."""

    text: LessonText
    race: Recorded

    @property
    def words(self) -> dict[str, str]:
        """Title, question and answer, for the player."""
        return {"title": self.text.title, "question": self.text.question, "answer": self.text.answer}


_INDEX: TypeAdapter[tuple[LessonText, ...]] = TypeAdapter(tuple[LessonText, ...])


def load_lessons(folder: Path) -> tuple[Lesson, ...]:
    """Load the lessons of a folder, in order; none if there is no such folder.

    Raises:
        ValueError: an index or a race that cannot be read, or a step that the race has not; one line that names it.
    """
    index = folder / "lessons.json"
    if not index.is_file():
        return ()
    try:
        text = _INDEX.validate_json(index.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{index.name} is not a list of lessons: {one_line(error)}") from error
    return tuple(_lesson(folder, one) for one in text)


def _lesson(folder: Path, text: LessonText) -> Lesson:
    race = read_recorded(folder / f"{text.name}.json")
    steps = len(race.lead.steps)
    if not 0 <= text.step < steps:
        raise ValueError(f"the lesson {text.name} is about step {text.step} of a race of {steps} steps")
    return Lesson(text, race)
