"""Export of answers as data in LLaVA's instruction format, with the scenes' pictures: what drafts learn on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from recipes.smol.answers import Answer
from recipes.smol.questions import fact
from recipes.toy.draw import draw_scene
from recipes.toy.export import conversations
from recipes.toy.language import QuestionAnswer
from recipes.toy.scene import sample_scene
from specllava.files import write_whole

SIZE: Final = 128  # pixels
FACTS: Final = 2  # questions of fact in each dialogue


def export_answers(answers: Sequence[Answer], directory: Path) -> Path:
    """Write a dialogue of each scene, its turns in a random order, to ``data.json`` and pictures to ``images/``.

    Args:
        answers: those of one scene in a row.

    Returns:
        The data file.
    """
    (directory / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, own in groupby(answers, key=lambda answer: answer.scene):
        scene, rng = sample_scene(number), random.Random(f"smol dialogue {number}")
        turns = [QuestionAnswer(one.question, one.answer) for one in own]
        turns += [fact(scene, rng) for _ in range(FACTS)]
        rng.shuffle(turns)
        name = f"{number:06d}.png"
        draw_scene(scene, SIZE).save(directory / "images" / name, format="PNG")
        rows.append({"id": f"smol-{number}", "image": name, "conversations": conversations(turns, number)})
    write_whole(directory / "data.json", json.dumps(rows, ensure_ascii=False))
    return directory / "data.json"
