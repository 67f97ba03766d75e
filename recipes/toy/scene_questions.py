"""Questions about toy scenes that no training has drawn, for measurements."""

from __future__ import annotations

import random
from collections.abc import Iterator

from recipes.toy.dialogue import SUGGESTIONS
from recipes.toy.draw import draw_scene
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import Split, scenes
from specllava.question import Question

START = 2_000_000  # scene numbers that neither training nor evaluation reaches
PICTURE_SIZE = 256


def scene_questions(split: Split, count: int) -> Iterator[Question]:
    """Yield questions about toy scenes: a request for a description or, every fourth time, a question."""
    for number, scene in enumerate(scenes(split, START, count)):
        rng = random.Random(number)
        text = rng.choice(SUGGESTIONS) if number % 4 == 3 else rng.choice(DETAIL_PROMPTS)
        yield Question(text, draw_scene(scene, PICTURE_SIZE), f"scene-{number + 1}.png")
