"""Toy scenes that ship: pictures, and rows of a data file with questions about them and true answers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

from specllava.files import shipped

SCENES: Final = shipped("assets") / "scenes" / "scenes.jsonl"  # held-out scenes first
Split = Literal["train", "held-out"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)


@cache
def scene_images(split: Split) -> tuple[Path, ...]:
    """Return the pictures of a split's scenes in the order of their rows."""
    rows = map(json.loads, SCENES.read_text(encoding="utf-8").splitlines())
    return tuple(SCENES.parent / row["image"] for row in rows if row["split"] == split)
