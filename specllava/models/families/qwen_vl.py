"""Qwen2-VL to Qwen3-VL, whose tokens have positions in time, height and width (M-RoPE, arXiv 2409.12191).

A word has the same position in all three rows. A picture's slots have those of their grid, and later tokens go on
after the grid's longer side. So a text with pictures ends at a smaller position than its length, and every later token
keeps that offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
)

from specllava.models.families.interface import (
    Family,
    GridFeatures,
    ImageFeatures,
    Picture,
    ProcessedPrompt,
    Qwen2VLProcessorPil,
    Qwen3VLProcessorPil,
)


class Qwen2VL(Family):
    """Qwen2-VL: pictures of any shape, a slot for four patches."""

    name, target, processor = "qwen2_vl", Qwen2VLForConditionalGeneration, Qwen2VLProcessorPil
    position_rows = 3

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        images, vision = processor.image_processor, config.vision_config
        return {
            "patch_size": (images.patch_size, vision.patch_size),
            "temporal_patch_size": (images.temporal_patch_size, vision.temporal_patch_size),
            "merge_size": (images.merge_size, vision.spatial_merge_size),
        }

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        grids = prompt.inputs["image_grid_thw"].split(1)
        patches = prompt.inputs["pixel_values"].split([int(grid.prod()) for grid in grids])
        return [{"pixel_values": own, "image_grid_thw": grid} for own, grid in zip(patches, grids, strict=True)]

    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        return [self._features(model, one) for one in pictures]

    def _features(self, model: PreTrainedModel, picture: Picture) -> GridFeatures:
        grid = picture["image_grid_thw"]
        output = model.model.get_image_features(picture["pixel_values"], grid, return_dict=True)
        (embeddings,) = output.pooler_output
        deep = [layer for (layer,) in getattr(output, "deepstack_features", ())]
        empty = embeddings.new_empty((0, *embeddings.shape))
        return GridFeatures(embeddings, grid, torch.stack(deep) if deep else empty)

    def stack(self, pictures: Sequence[GridFeatures]) -> tuple[GridFeatures, ...]:
        return tuple(pictures)

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[GridFeatures]) -> list[int]:
        return [len(one.embeddings) for one in features]

    def project(self, model: PreTrainedModel, features: Sequence[GridFeatures]) -> Tensor:
        return torch.cat([one.embeddings for one in features])

    def prefill_positions(
        self, model: PreTrainedModel, input_ids: Tensor, features: Sequence[GridFeatures] | None
    ) -> Tensor | None:
        if features is None:
            return None
        positions: Tensor  # [3, 1, length]
        positions, _ = model.model.get_rope_index(  # its offset is that of the highest id, which decoding does not use
            input_ids,
            image_grid_thw=torch.cat([one.grid for one in features]),
            **self.prompt_arguments(model.config, input_ids),
        )
        return positions

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": torch.eq(input_ids, config.image_token_id).int()}


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: most layers of its tower attend within windows."""

    name, target = "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration


class Qwen3VL(Qwen2VL):
    """Qwen3-VL: after its first layers the decoder adds to each slot what the tower made of it earlier (DeepStack)."""

    name, target, processor = "qwen3_vl", Qwen3VLForConditionalGeneration, Qwen3VLProcessorPil

    def prefill_arguments(
        self, model: PreTrainedModel, input_ids: Tensor, features: Sequence[GridFeatures] | None
    ) -> dict[str, Any]:
        if features is None:
            return {}
        return {
            "visual_pos_masks": self.prompt_arguments(model.config, input_ids)["mm_token_type_ids"] > 0,
            "deepstack_visual_embeds": list(torch.cat([one.deep for one in features], dim=1)),  # [slots, hidden] each
        }


class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL whose decoder routes each token to a few of its experts, by that token's state alone."""

    name, target = "qwen3_vl_moe", Qwen3VLMoeForConditionalGeneration
