"""One question with its answer, its subject, and the wording of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllava.toyworld.language import QuestionAnswer, enumerate_words, polish
from specllava.toyworld.scene import Scene, Thing


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn, with the referent of "it" or "they" after it and the properties already stated of that referent."""

    turn: QuestionAnswer
    focus: tuple[Thing, ...] = ()
    told: frozenset[str] = frozenset()  # what has been stated of the focus: colour, where, size


Family = Callable[[Scene, random.Random], Exchange | None]


def each(values: list[str]) -> str:
    """Word the values of two objects or more, one after the other: "one is red and the other is blue"."""
    if len(set(values)) == 1:
        return f"{'both' if len(values) == 2 else 'all of them'} are {values[0]}"
    if len(values) == 2:
        return f"one is {values[0]} and the other is {values[1]}"
    return enumerate_words([f"one is {value}" for value in values])


def worded(rng: random.Random, questions: Sequence[str], answers: Sequence[str]) -> QuestionAnswer:
    return QuestionAnswer(polish(rng.choice(questions)), polish(rng.choice(answers)))
