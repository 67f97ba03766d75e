"""The scenes that ship: pictures, and a data file with questions of every category and their true answers."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from PIL import Image

from recipes.toy.dialogue import ask, converse
from recipes.toy.language import QuestionAnswer, describe
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import Scene, Split, scenes
from recipes.toy.scene_questions import START, scene_questions

COUNTS: Final[dict[Split, int]] = {"held-out": 240, "train": 60}  # in the order of the file
CATEGORIES: Final = ("describe", "count", "story", "dialogue")
COUNT: Final = ("How many objects are there?", "How many things can you see?", "Count the objects.")
STORY: Final = "Tell me a story about this picture."


def write_scenes(directory: Path) -> Path:
    """Write pictures and ``scenes.jsonl``, and return that file; the same bytes each time."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for split, count in COUNTS.items():
        shown = zip(scenes(split, START, count), scene_questions(split, count), strict=True)
        for number, (scene, asked) in enumerate(shown):
            assert isinstance(asked.image, Image.Image)
            image = f"scene-{len(rows) + 1}.png"
            asked.image.save(directory / image, format="PNG", optimize=True)
            rows.append({"id": f"{split}-{scene.seed}", "split": split, "image": image, "prompt": asked.text}
                        | _questions(number, scene))  # fmt: skip
    path = directory / "scenes.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _questions(number: int, scene: Scene) -> dict[str, object]:
    """Return the category that a benchmark asks, its questions as ``turns``, and every category's with its answers."""
    asked = CATEGORIES[number % len(CATEGORIES)]
    seeds = {category: number if category == asked else f"{category} {number}" for category in CATEGORIES}
    talks = {
        category: [asdict(turn) for turn in _talk(category, scene, random.Random(seed))]
        for category, seed in seeds.items()
    }
    return {"category": asked, "turns": [turn["question"] for turn in talks[asked]], "questions": talks}


def _talk(category: str, scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return a dialogue of two turns or more, or one question of another category."""
    if category == "dialogue":
        while len(talk := converse(scene, rng)) < 2:
            pass
        return talk
    question = STORY if category == "story" else rng.choice(COUNT if category == "count" else DETAIL_PROMPTS)
    while (turn := ask(scene, rng)[0] if category == "count" else describe(scene, rng)).question != question:
        pass
    return (turn,)
