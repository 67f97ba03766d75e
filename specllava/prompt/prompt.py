"""Prompts: token ids with image slots, and the features of the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specllava.models.families.interface import Features, ImageFeatures, Picture


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready for every lane.

    Args:
        text: the last user message, for display.
        input_ids: ``[1, length]``, with image slots.
        image_inputs: of pictures as the processor gives them, by the names of the target's ``forward``; for
            LLaVA-1.5 ``pixel_values [images, 3, height, width]``. None without pictures.
        pictures: those inputs by picture.
        features: of all pictures, for LLaVA-1.5 ``[images, patches, vision_hidden]``, or ``None``.
        image_keys: a key for each picture; equal keys mean equal features.
        image_sizes: width and height of each picture as given.
        vision_seconds: time of encoding the pictures, those left out whose features were known.
        turn: messages of the user before the last one.
        forced_prefix: the last ids of ``input_ids``, if they are the beginning of the answer: read, not decoded.
        draft_prompt: prompt of the draft model; ``None`` if it reads the same. A text-only draft reads
            no image slots, one with a tower of its own other features; see also :func:`with_draft_prompt`.
    """

    text: str
    input_ids: Tensor
    image_inputs: Mapping[str, Tensor] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    features: Features | None = None
    image_keys: tuple[str, ...] = ()
    image_sizes: tuple[tuple[int, int], ...] = ()
    vision_seconds: float = 0.0
    turn: int = 0
    forced_prefix: tuple[int, ...] = ()
    draft_prompt: Prompt | None = None

    @property
    def length(self) -> int:
        return self.input_ids.shape[1]

    @property
    def features_by_key(self) -> dict[str, ImageFeatures]:
        """Features of its pictures, those for the draft included, which a later prompt need not compute."""
        own = {} if self.features is None else dict(zip(self.image_keys, self.features, strict=True))
        return own if self.draft_prompt is None else own | self.draft_prompt.features_by_key


def with_draft_prompt(prompt: Prompt, other: Prompt) -> Prompt:
    """Return ``prompt`` for the target with ``other`` for the draft, such as the same words with another picture.

    The target decides every token, so the answer stays what it was; only the guesses change.

    Raises:
        ValueError: ``other`` is longer, so the draft would run out of room before the target.
    """
    read = other.draft_prompt or other
    if read.length > prompt.length:
        raise ValueError(f"the draft's prompt has {read.length} tokens, more than the target's {prompt.length}")
    return replace(prompt, draft_prompt=read)


def with_prefix(prompt: Prompt, prefix: Sequence[int]) -> Prompt:
    """Return the prompt with the beginning of its answer: decoding goes on after it."""
    tail = torch.tensor([list(prefix)], dtype=prompt.input_ids.dtype, device=prompt.input_ids.device)
    return replace(
        prompt,
        input_ids=torch.cat([prompt.input_ids, tail], dim=1),
        forced_prefix=(*prompt.forced_prefix, *prefix),
        draft_prompt=None if prompt.draft_prompt is None else with_prefix(prompt.draft_prompt, prefix),
    )
