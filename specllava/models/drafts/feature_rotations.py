"""Rotary positions inside a feature draft: plain ones, or its target's rows of time, height and width.

M-RoPE (Qwen2-VL, arXiv 2409.12191) rotates each pair of numbers of a head by one of three positions. Of published
drafts only EAGLE-3's do so; EAGLE, MSD and ViSpec count plainly whatever their target does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

SECTIONS: Final = ("mrope_section", "mrope_interleaved")
GIVEN: Final = ("rope_scaling", "rope_parameters")  # where a configuration may say it, beside "rope_theta"
USUAL_THETA: Final = 10000.0


def rotary_settings(name: str, settings: Mapping[str, Any], in_rows: bool) -> dict[str, Any]:
    """Return the rotary settings of any ``config.json`` by the names of ``FeatureDraftConfig``.

    Args:
        in_rows: the draft reads its target's three rows of positions, if the settings have sections for them.

    Raises:
        ValueError: settings that are no JSON object, or sections that are not three numbers.
    """
    given: dict[str, Any] = {"rope_theta": settings.get("rope_theta")}
    for key in GIVEN:
        one = settings.get(key) or {}
        if not isinstance(one, Mapping):
            raise ValueError(f"{name} has {key} {one!r}, which is no JSON object")
        given |= one
    kind = given.pop("type", None)
    kind = given.pop("rope_type", None) or kind or "default"
    rope = {key: value for key, value in given.items() if key not in SECTIONS}
    rope |= {"rope_type": "default" if kind == "mrope" else kind, "rope_theta": rope["rope_theta"] or USUAL_THETA}
    section = given.get(SECTIONS[0])
    if section is None or not in_rows:
        return {"rope_parameters": rope}
    if not isinstance(section, list) or len(section) != 3 or not all(isinstance(one, int) for one in section):
        raise ValueError(f"{name} has mrope_section {section!r}, which are not three whole numbers")
    return {"rope_parameters": rope, "mrope_section": section, "mrope_interleaved": bool(given.get(SECTIONS[1]))}


def rotary_axes(section: Sequence[int], interleaved: bool) -> list[int]:
    """Return the row of positions that each pair of numbers of a head is rotated by: 0 time, 1 height, 2 width.

    Args:
        section: pairs of each row; the rows follow one another, or take turns as far as they go.
    """
    if not interleaved:
        return [row for row, count in enumerate(section) for _ in range(count)]
    return [pair % 3 if pair < 3 * section[pair % 3] else 0 for pair in range(sum(section))]


def rotations_in_rows(
    rotary: LlamaRotaryEmbedding, axes: Sequence[int], positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines ``[batch, entries, size of a head]`` of positions ``[3, batch, entries]``."""
    angles = positions[list(axes)].float() * rotary.inv_freq.float()[:, None, None]  # [pairs, batch, entries]
    angles = angles.permute(1, 2, 0).repeat(1, 1, 2)
    scaling = rotary.attention_scaling
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)
