"""Dialogues about toy scenes that no training has drawn: one of the sources of prompts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from specllava.bench.dialogue import BenchDialogue
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.toyworld.dialogue import converse
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.phrases import DETAIL_PROMPTS
from specllava.toyworld.scene import Scene, Split, scenes
from specllava.toyworld.scene_questions import PICTURE_SIZE, START, scene_questions

CATEGORIES = ("describe", "count", "story", "dialogue")
COUNT = ("How many objects are there?", "How many things can you see?", "Count the objects.")
STORY = "Tell me a story about this picture."


def toy_dialogues(split: Split, count: int, turns: int) -> Iterator[BenchDialogue]:
    """Yield ``count`` dialogues about toy scenes, of every category in turn, with at most ``turns`` questions each."""
    for number, scene in enumerate(scenes(split, START, count)):
        category = CATEGORIES[number % len(CATEGORIES)]
        asked = _questions(category, scene, random.Random(number))[:turns]
        yield BenchDialogue(f"scene {number + 1}", category, asked, (draw_scene(scene, PICTURE_SIZE),))


def _questions(category: str, scene: Scene, rng: random.Random) -> tuple[str, ...]:
    if category == "dialogue":
        while len(talk := converse(scene, rng)) < 2:
            pass
        return tuple(turn.question for turn in talk)
    return (STORY if category == "story" else rng.choice(COUNT if category == "count" else DETAIL_PROMPTS),)


def toy_prompts(pair: Pair, split: Split, count: int) -> Iterable[Prompt]:
    """Yield prompts of single questions about toy scenes, most of them for a description."""
    return (pair.prompt(asked.image, asked.text) for asked in scene_questions(split, count))
