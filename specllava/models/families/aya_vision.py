"""Aya Vision (arXiv 2505.08751), whose tiles stand between words that number them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import AyaVisionForConditionalGeneration, PretrainedConfig, ProcessorMixin

from specllava.models.families.interface import Picture, Size, square
from specllava.models.families.plain import Plain


class AyaVision(Plain):
    """Aya Vision 8B and 32B: tiles of equal numbers of slots, then the whole; each is a picture of its own."""

    name, target = "aya_vision", AyaVisionForConditionalGeneration

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        vision = config.vision_config
        return square(config, processor) | {
            "img_size": (processor.img_size, vision.image_size),
            "patch_size": (processor.patch_size, vision.patch_size * config.downsample_factor),
        }

    def pictures(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor], sizes: Sequence[Size]
    ) -> list[Picture]:
        return [{"pixel_values": tile} for tile in inputs["pixel_values"].split(1)]
