"""Export of conversations about scenes as a data file in LLaVA's instruction format, with its pictures."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from recipes.toy.corpus import conversation
from recipes.toy.draw import draw_scene
from recipes.toy.language import QuestionAnswer

EXPORT_START = 60_000_000  # sample numbers that neither training nor evaluation reaches


def export(directory: Path, count: int, start: int = EXPORT_START, size: int = 128) -> Path:
    """Write conversations ``start``, ``start + 1``, … to ``data.json`` and their pictures to ``images/``.

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
    beside = data.with_suffix(".writing")
    with beside.open("w", encoding="utf-8") as file:
        for number in tqdm(range(count), desc="scenes", unit="row", mininterval=2.0):
            scene, turns = conversation(start + number)
            name = f"{number:06d}.png"
            draw_scene(scene, size).save(images / name, format="PNG")
            row = {"id": f"scene-{start + number}", "image": name, "conversations": conversations(turns, number)}
            file.write(("[\n" if number == 0 else ",\n") + json.dumps(row, ensure_ascii=False))
        file.write("\n]\n")
    beside.replace(data)
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
