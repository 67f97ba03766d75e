"""Qwen3-VL and its mixtures of experts (arXiv 2511.21631): as Qwen2-VL, and slots take in the tower's earlier layers.

Each patch in time of a video has a text of its seconds in front of its slots, and positions as a picture has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
)

from specllava.models.families.interface import GridFeatures
from specllava.models.families.processors import Qwen3VLProcessorPil
from specllava.models.families.qwen_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """Qwen3-VL: behind its first layers the decoder adds to each slot what the tower made of it earlier (DeepStack)."""

    name, target, processor = "qwen3_vl", Qwen3VLForConditionalGeneration, Qwen3VLProcessorPil

    def slot_width(self, config: PretrainedConfig) -> int:
        return super().slot_width(config) * (1 + len(config.vision_config.deepstack_visual_indexes))

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
