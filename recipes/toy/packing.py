"""Several conversations about one picture in one row: the picture is encoded once, and more of a row has labels.

Each conversation attends to the picture and itself only, at the positions that it would have alone. So a packed row is
equivalent to its conversations one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from recipes.toy.corpus import draw_pixels, encode_chat
from recipes.toy.hints import Hints
from recipes.toy.language import QuestionAnswer
from recipes.toy.scene import Scene, sample_scene
from specllava.distill.losses import IGNORE

Questioner = Callable[[Scene, random.Random], tuple[QuestionAnswer, ...]]
PICTURE, PADDING = 0, -1  # segments; the conversations are numbered from 1
FILLERS: Final = {"labels": IGNORE, "cells": IGNORE, "position_ids": 0, "segments": PADDING}  # what pads a row


class PackedBatches:
    """Batches by number, one picture a row: ``pixel_values [b, 3, h, w]``, ``patch_names [b, patches, NAMES]``, and
    ``input_ids``, ``labels``, ``cells``, ``position_ids``, ``segments`` ``[b, length]``.
    """

    def __init__(
        self, processor: Any, batch: int, image_tokens: int, talks: Sequence[Questioner], first: int = 0
    ) -> None:
        self.processor, self.batch, self.image_tokens, self.talks = processor, batch, image_tokens, talks
        self.first = first
        self.hints = Hints(processor.tokenizer, image_tokens)

    def __call__(self, number: int) -> dict[str, Tensor]:
        start = self.first + number * self.batch
        scenes = [sample_scene(index) for index in range(start, start + self.batch)]
        rows = [self.row(scene, index) for index, scene in enumerate(scenes, start)]
        batch = pad_rows(rows, self.processor.tokenizer)
        batch["pixel_values"] = draw_pixels(self.processor.image_processor, scenes)
        batch["patch_names"] = torch.stack([self.hints.name_patches(scene) for scene in scenes])
        return batch

    def row(self, scene: Scene, index: int) -> dict[str, list[int]]:
        """Return a row: the picture's prefix once, then the tokens that each conversation adds to it."""
        tokenizer = self.processor.tokenizer
        image = tokenizer.convert_tokens_to_ids("<image>")
        row: dict[str, list[int]] = {name: [] for name in ("input_ids", *FILLERS)}
        for segment, talk in enumerate(self.talks, 1):
            turns = talk(scene, random.Random(f"specllava packed {index} {segment}"))
            ids, labels = encode_chat(tokenizer, turns, self.image_tokens)
            shared = ids.index(image) + self.image_tokens + 1  # with the line break after the picture
            start = shared if row["input_ids"] else 0
            row["input_ids"] += ids[start:]
            row["labels"] += labels[start:]
            row["cells"] += self.hints.cells(scene, ids, labels)[start:]
            row["position_ids"] += range(start, len(ids))
            row["segments"] += [PICTURE] * (shared - start) + [segment] * (len(ids) - shared)
        return row


def pad_rows(rows: Sequence[dict[str, list[int]]], tokenizer: Any) -> dict[str, Tensor]:
    """Return rows as tensors ``[rows, length]``, filled up to the longest."""
    length = max(len(row["input_ids"]) for row in rows)
    fillers = {"input_ids": tokenizer.pad_token_id, **FILLERS}
    return {
        name: torch.tensor([row[name] + [filler] * (length - len(row[name])) for row in rows])
        for name, filler in fillers.items()
    }


def packed_mask(segments: Tensor) -> Tensor:
    """Return the attention mask ``[b, 1, length, length]``: earlier tokens of the same conversation, the picture."""
    length = segments.shape[-1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    keys = segments[:, None, :]  # [b, 1, length]
    own = keys.eq(segments[:, :, None])
    return (earlier & (own | keys.eq(PICTURE)))[:, None]
