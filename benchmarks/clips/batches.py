"""Clips as packed rows: several questions about the same frames in one row, and what every slot of a frame shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.clips.clip import Clip, sample_clip
from benchmarks.clips.questions import CLIP_FAMILIES
from specllava.distill.losses import IGNORE
from specllava.toyworld.corpus import draw_pixels
from specllava.toyworld.draw import shown_at
from specllava.toyworld.hints import Hints, first_tokens
from specllava.toyworld.packing import pack_row, pad_rows
from specllava.toyworld.scene import Scene

MARKS: Final = "0789"  # of the frames of a clip, in their order: digits that no cell has


class ClipBatches:
    """Batches by number, a clip a row, as of :class:`PackedBatches`. The pictures of all rows are concatenated.

    Shapes are ``pixel_values [b · frames, 3, h, w]`` and ``patch_names [b, frames · patches, NAMES + 2]``.

    Args:
        frames: how many frames of its clips a batch shows; batches take turns.
        first: number that is added to each clip's.
    """

    def __init__(self, processor: Any, batch: int, image_tokens: int, frames: Sequence[int], first: int = 0) -> None:
        self.processor, self.batch, self.image_tokens, self.frames = processor, batch, image_tokens, frames
        self.first = first
        self.hints = Hints(processor.tokenizer, image_tokens)
        self.moves, self.stays = first_tokens(processor.tokenizer, ("moves", "stays")).values()
        self.marks = [self.tokenizer.encode(mark, add_special_tokens=False)[0] for mark in MARKS]

    def __call__(self, number: int) -> dict[str, Tensor]:
        start, count = self.first + number * self.batch, self.frames[number % len(self.frames)]
        clips = [sample_clip(index) for index in range(start, start + self.batch)]
        batch = pad_rows([self.row(clip, index, count) for index, clip in enumerate(clips, start)], self.tokenizer)
        frames = [scene for clip in clips for scene in clip.frames(count)]
        batch["pixel_values"] = draw_pixels(self.processor.image_processor, frames)
        batch["patch_names"] = torch.stack([self.name_patches(clip, count) for clip in clips])
        return batch

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    def row(self, clip: Clip, index: int, count: int) -> dict[str, list[int]]:
        """Return a row: the frames once, then a question of each family with its answer."""
        talks = [
            (family.ask(clip, random.Random(f"specllava clip talk {index} {name}")),)
            for name, family in CLIP_FAMILIES.items()
        ]
        return pack_row(self.tokenizer, talks, self.image_tokens, lambda labels: [IGNORE] * len(labels), count)

    def name_patches(self, clip: Clip, count: int) -> Tensor:
        """Return the words of each slot, ``[frames · patches, NAMES + 2]``.

        They are those of its frame, the frame's mark, and whether its object has moved since the frame before.
        """
        before: Scene | None = None
        named = []
        for mark, scene in zip(self.marks, clip.frames(count), strict=False):
            moved = before not in (None, scene)
            last = [
                IGNORE if thing is None
                else self.moves if moved and thing.combination == clip.moving.combination else self.stays
                for thing in shown_at(scene, self.hints.side)
            ]  # fmt: skip
            own = torch.tensor([(mark, one) for one in last])  # [patches, 2]
            named.append(torch.cat([self.hints.name_patches(scene), own], dim=1))
            before = scene
        return torch.cat(named)
