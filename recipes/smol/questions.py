"""Questions about toy scenes for a real language model: what a user asks, and what it reads instead of the picture."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recipes.toy.dialogue import ask
from recipes.toy.language import QuestionAnswer, enumerate_words, polish
from recipes.toy.phrases import COLUMN_PHRASES, NUMBERS, PLACE_NAMES, ROW_PHRASES
from recipes.toy.scene import Scene, Thing, scenes

FREE: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # kind: questions, instructions
    "describe": (
        ("Describe the picture.", "What do you see?", "Describe this image in detail.", "What is in the picture?"),
        ("{truth} Describe this picture in two or three sentences. Name every object with its colour.",),
    ),
    "caption": (
        ("Write a caption.", "Describe the picture in one sentence.", "Give a short caption for this image."),
        ("{truth} Describe this picture in one sentence.",),
    ),
    "story": (
        ("Tell me a story.", "Tell a short story about this picture.", "Write a story about what you see."),
        ("Write a short story of three sentences about {caption}. Name every object with its colour.",),
    ),
    "poem": (
        ("Write a poem about this.", "Write a short poem about the picture.", "Make a poem of it."),
        ("Write a poem of four short lines about {caption}.",),
    ),
    "next": (
        ("What might happen next?", "What happens next?", "What could happen in a moment?"),
        ("{truth} What might happen next in this picture? Answer in two sentences.",),
    ),
    "imagine": (
        ("Imagine you are the {kind}. What do you see?", "Speak as the {kind}.", "What would the {kind} say?"),
        ("{truth} Imagine you are the {thing}. Say in two sentences what you see around you.",),
    ),
    "mood": (
        ("What is the mood of the picture?", "How does the picture feel?", "Describe the mood."),
        ("{truth} Describe the mood of this picture in two sentences.",),
    ),
    "title": (
        ("Give the picture a title.", "What would be a good title?", "Suggest a title for this painting."),
        ("Give a short title for a painting of {caption}.",),
    ),
    "child": (
        ("Explain the picture to a child.", "How would you explain this to a little child?"),
        ("{truth} Explain this picture to a little child in two sentences.",),
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One question to a scene that has many good answers.

    Args:
        question: what the model is asked beside the picture.
        instruction: what it is asked without it, with the truth as text.
    """

    kind: str
    question: str
    instruction: str


def truth(scene: Scene) -> str:
    """Return the content of a scene as plain sentences."""
    place, total = PLACE_NAMES[scene.place][0], len(scene.things)
    count = f"There {'is' if total == 1 else 'are'} {NUMBERS[total]} object{'s' * (total > 1)}."
    things = [
        f"A {thing.size} {thing.colour} {thing.kind} is {COLUMN_PHRASES[thing.column][0]}, {ROW_PHRASES[thing.row][1]}."
        for thing in scene.things
    ]
    return " ".join(polish(each) for each in (f"The picture shows {place} {_when(scene)}.", count, *things))


def caption(scene: Scene) -> str:
    """Return the content of a scene as one noun phrase, without positions."""
    things = enumerate_words([f"a {thing.size} {thing.colour} {thing.kind}" for thing in scene.things])
    return f"{things} {_IN[scene.place]} {_when(scene)}"


def free_task(scene: Scene, rng: random.Random) -> Task:
    """Draw a question that has many good answers."""
    kind = rng.choice(list(FREE))
    questions, instructions = FREE[kind]
    thing = rng.choice(scene.things)
    words = {"truth": truth(scene), "caption": caption(scene), "thing": _looks(thing), "kind": thing.kind}
    return Task(kind, *(polish(rng.choice(texts).format(**words)) for texts in (questions, instructions)))


def free_questions(start: int, count: int) -> Iterator[tuple[Scene, str]]:
    """Yield held-out scenes, from number ``start`` on, each with a free question; its kinds take turns."""
    for number, scene in enumerate(scenes("held-out", start, count)):
        questions, _ = FREE[list(FREE)[number % len(FREE)]]
        yield scene, random.Random(number).choice(questions).format(kind=scene.things[0].kind)


def fact(scene: Scene, rng: random.Random) -> QuestionAnswer:
    """Draw a question that has one right answer, with that answer."""
    return ask(scene, rng)[0]


_IN: Final = {
    "meadow": "in a meadow", "beach": "on a beach", "desert": "in the desert", "forest": "in a forest",
    "city": "in a city", "mountains": "in the mountains",
}  # fmt: skip
_WEATHER: Final = {
    "clear": "under a clear sky", "cloudy": "under a cloudy sky", "rainy": "in the rain", "snowy": "in the snow",
}  # fmt: skip
_TIME: Final = {"day": "during the day", "sunset": "at sunset", "night": "at night"}


def _when(scene: Scene) -> str:
    return f"{_WEATHER[scene.weather]} {_TIME[scene.time]}"


def _looks(thing: Thing) -> str:
    return f"{thing.size} {thing.colour} {thing.kind}"
