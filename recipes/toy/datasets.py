"""Scenes with questions and answers: files of those that ship, training data for ``distill``, measurements."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from PIL import Image
from tqdm.auto import tqdm

from recipes.toy.corpus import conversation
from recipes.toy.dialogue import SUGGESTIONS, ask, converse
from recipes.toy.draw import draw_scene
from recipes.toy.language import QuestionAnswer, describe
from recipes.toy.phrases import DETAIL_PROMPTS, read_wordings
from recipes.toy.scene import Scene, Split, scenes
from specllava.files import write_whole

START = 2_000_000  # scene numbers that neither training nor evaluation reaches
EXPORT_START = 60_000_000  # nor do these
PICTURE_SIZE = 256
COUNTS: Final[dict[Split, int]] = {"held-out": 240, "train": 60}  # scenes that ship, in the order of the file
CATEGORIES: Final = ("describe", "count", "story", "dialogue")
COUNT: Final = ("How many objects are there?", "How many things can you see?", "Count the objects.")
STORY: Final = "Tell me a story about this picture."


def held_out_questions(preset: str, count: int) -> Iterator[tuple[Image.Image, str]]:
    """Yield pictures of held-out scenes with a question each: free ones, whose kinds take turns, for the pair smol."""
    free = read_wordings()["free"]
    for number, scene in enumerate(scenes("held-out", START, count)):
        if preset == "smol":
            text = random.Random(number).choice(free[number % len(free)]).format(kind=scene.things[0].kind)
        else:
            text = _prompt(number)
        yield draw_scene(scene, PICTURE_SIZE), text


def _prompt(number: int) -> str:
    """Return a request for a description or, every fourth time, a question."""
    return random.Random(number).choice(SUGGESTIONS if number % 4 == 3 else DETAIL_PROMPTS)


def write_scenes(directory: Path) -> Path:
    """Write pictures and ``scenes.jsonl`` of the scenes that ship, and return that file; the same bytes each time."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for split, count in COUNTS.items():
        for number, scene in enumerate(scenes(split, START, count)):
            image = f"scene-{len(rows) + 1}.png"
            draw_scene(scene, PICTURE_SIZE).save(directory / image, format="PNG", optimize=True)
            row = {"id": f"{split}-{scene.seed}", "split": split, "image": image, "prompt": _prompt(number)}
            rows.append(row | _questions(number, scene))
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


def export(directory: Path, count: int) -> Path:
    """Write conversations in LLaVA's instruction format to ``data.json``, and their pictures to ``images/``.

    Returns:
        The data file.

    Raises:
        ValueError: the directory has a data file already.
    """
    data = directory / "data.json"
    if data.exists():
        raise ValueError(f"{data} is there already: choose another --output")
    images = directory / "images"
    images.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in tqdm(range(count), desc="scenes", unit="row", mininterval=2.0):
        scene, turns = conversation(EXPORT_START + number)
        name = f"{number:06d}.png"
        draw_scene(scene, 128).save(images / name, format="PNG")
        rows.append({"id": f"scene-{scene.seed}", "image": name, "conversations": conversations(turns, number)})
    write_whole(data, "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")
    return data


def conversations(turns: Sequence[QuestionAnswer], seed: int) -> list[dict[str, Any]]:
    """Return the messages of a row; the picture is before the first question or, as often, after it, as in LLaVA."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        question = turn.question
        if number == 0:
            before = random.Random(seed).random() < 0.5
            question = f"<image>\n{question}" if before else f"{question}\n<image>"
        messages += [{"from": "human", "value": question}, {"from": "gpt", "value": turn.answer}]
    return messages
