"""A tiny pair and a small data file on disk, and the distill command run on them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch

from recipes.toy.corpus import conversation
from recipes.toy.datasets import conversations
from specllava.models.drafts.draft_vlm import save
from support import models

TEXT_ONLY = 3  # every third row shows no picture


def write_pair(root: Path) -> None:
    """``target`` and ``draft``: tiny, random, in float32."""
    save(copy.deepcopy(models.target()), models.processor(), root / "target", torch.float32)
    save(copy.deepcopy(models.draft("bad")), models.processor(), root / "draft", torch.float32)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows about toy scenes, text-only ones among them; pictures are named ``N.png``."""
    made = []
    for number in range(start, start + count):
        said = conversations(conversation(number)[1][:2], number)
        row = {"id": str(number), "image": f"{number}.png", "conversations": said}
        if number % TEXT_ONLY == 2:
            del row["image"]
            said[0]["value"] = said[0]["value"].replace("<image>", "").strip()
        made.append(row)
    return made


def write_data(root: Path, count: int) -> None:
    """``data.json`` and ``images/``."""
    (root / "images").mkdir()
    for row in (made := rows(count)):
        if "image" in row:
            models.picture(int(row["id"])).save(root / "images" / row["image"])
    (root / "data.json").write_text(json.dumps(made))


def arguments(root: Path, output: Path, **options: Any) -> list[str]:
    """Of the distill command, on what lies in ``root``; quick unless ``options`` say otherwise."""
    given = {
        "target": root / "target", "draft": root / "draft", "data": root / "data.json", "images": root / "images",
        "output": output, "device": "cpu", "steps": 6, "batch": 2, "validation_prompts": 2, "validate_every": 3,
        "checkpoint_every": 2, "learning_rate": 0.01, "length": 400, "decoding.max_new_tokens": 6, **options,
    }  # fmt: skip
    words = ["distill"]
    for name, value in given.items():
        if value is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
