"""Data and drafts for targets of every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch

from specllava.distill.new_draft import init_draft
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.pair import Pair
from support import checkpoints, families

AnyFamily = families.FamilyName | families.TextName | checkpoints.FamilyName
Kind = Literal["vlm", "blind", "own", "eagle", "eagle3"]
ANSWERS = ("A red bus stands on the left side of the road.", "There are two cats and a dog.", "It is on the table.")


def row(number: int) -> dict[str, Any]:
    """Text alone, one picture, or three in two questions; all of odd sizes."""
    names = [f"{place % len(checkpoints.SIZES)}.png" for place in range(number, number + (0, 1, 3)[number % 3])]
    marks = (len(names) > 0) * "<image>\n", "<image>" * max(0, len(names) - 1)
    said = []
    for place, mark in enumerate(marks):
        said += [
            {"from": "human", "value": mark + checkpoints.QUESTIONS[(number + place) % 5]},
            {"from": "gpt", "value": ANSWERS[(number + place) % 3]},
        ]
    return {"id": str(number), "conversations": said} | ({"image": names} if names else {})


def write_data(root: Path, rows: int) -> None:
    """``images/`` and ``data.json``."""
    (root / "images").mkdir()
    for number in range(len(checkpoints.SIZES)):
        checkpoints.picture(number).save(root / "images" / f"{number}.png")
    (root / "data.json").write_text(json.dumps([row(number) for number in range(rows)]))


def write_model(
    directory: Path, family: AnyFamily, seed: int = 0, layout: families.Layout | None = None, near: Path | None = None
) -> Path:
    """A random model of any family, or one that resembles ``near``."""
    if family in families.TEXTS:
        return families.write_text_model(directory, family, seed, layout, near)
    if family in families.FAMILIES:
        return families.write_checkpoint(directory, family, seed, layout, near)
    if near is not None:
        return checkpoints.write_llava(directory, family, parts=checkpoints.noisy(checkpoints.weights_of(near), 0.03))
    sizes = {} if layout is None else {"layers": layout.layers, "hidden": layout.hidden, "vision": layout.vision}
    return checkpoints.write_llava(directory, family, seed, **sizes)


def write_draft(directory: Path, family: AnyFamily, kind: Kind, target: Path) -> Path:
    """A draft that has learnt nothing, or one of its ``own`` tower that resembles its target."""
    if kind in ("eagle", "eagle3"):
        model = Pair.load(target, device="cpu", dtype="float32").target
        save(fresh_feature_draft(model, kind, input_norm=False), None, directory, torch.float32)
        return directory
    if kind == "own" and family in checkpoints.FAMILIES:
        near = checkpoints.noisy(checkpoints.weights_of(target), 0.01)
        return checkpoints.write_llava(directory, family, 1, parts=near)
    if kind == "own":
        return families.write_checkpoint(directory, family, 1, None, target, noise=0.005)
    speaker = directory.with_name(f"{directory.name} speaker")
    if family in checkpoints.FAMILIES:
        checkpoints.write_llama(speaker)
    else:
        families.write_speaker(speaker, family)
    return init_draft(speaker, target, directory, text_only=kind == "blind").directory
