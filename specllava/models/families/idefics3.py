"""Idefics3 and SmolVLM, whose image slots stand between row and column tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import (
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    PretrainedConfig,
    ProcessorMixin,
    SmolVLMForConditionalGeneration,
)

from specllava.models.families.interface import Picture, Size, split_tiles
from specllava.models.families.plain import Plain


class Idefics3(Plain):
    """Idefics3 (arXiv 2408.12637): tiles between row and column tokens, then the whole picture."""

    name, target = "idefics3", Idefics3ForConditionalGeneration

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        side = config.vision_config.image_size
        tokens = (side // config.vision_config.patch_size // config.scale_factor) ** 2
        return {
            "max_image_size": (processor.image_processor.max_image_size["longest_edge"], side),
            "image_seq_len": (processor.image_seq_len, tokens),
        }

    def pictures(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor], sizes: Sequence[Size]
    ) -> list[Picture]:
        tiles = [max(1, processor.image_processor.get_number_of_image_patches(*size)[0]) for size in sizes]
        names = "pixel_values", "pixel_attention_mask"  # [1, tiles, …]
        read = zip(*(split_tiles(inputs[name][0], tiles) for name in names), strict=True)
        return [{name: one[None] for name, one in zip(names, parts, strict=True)} for parts in read]


class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM2 (arXiv 2504.05299), which write a picture as Idefics3 does."""

    name, target, processor = "smolvlm", SmolVLMForConditionalGeneration, Idefics3Processor

