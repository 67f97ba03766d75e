"""LLaVA-NeXT-Video, which reads pictures as LLaVA-NeXT does and the frames of a video pooled, in slots of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlavaNextVideoForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.image_processing_utils import select_best_resolution

from specllava.models.families.interface import Picture, Size, square
from specllava.models.families.llava import patches
from specllava.models.families.plain import Plain
from specllava.models.families.processors import LlavaNextVideoProcessorPil


class LlavaNextVideo(Plain):
    """LLaVA-NeXT-Video: a frame is one square, of whose patches four become one slot."""

    name, target = "llava_next_video", LlavaNextVideoForConditionalGeneration
    processor, reads_videos = LlavaNextVideoProcessorPil, True

    def agreements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        return square(config, processor) | patches(config, processor)

    def pictures(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor], sizes: Sequence[Size]
    ) -> list[Picture]:
        side, found = config.vision_config.image_size, list[Picture]()
        for tiles, size in zip(inputs["pixel_values"], sizes, strict=True):
            height, width = select_best_resolution(size, config.image_grid_pinpoints)
            own = tiles[: 1 + int(height // side) * int(width // side)]  # behind them are zeros
            found.append({"pixel_values": own[None], "image_sizes": torch.tensor([size])})
        return found

    def videos(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor]
    ) -> list[Picture]:
        return [{"pixel_values_videos": one[None]} for one in inputs["pixel_values_videos"]]

    def _embeddings(self, model: PreTrainedModel, picture: Picture) -> Tensor:
        if "pixel_values_videos" not in picture:
            return super()._embeddings(model, picture)
        pooled: Tensor = model.model.get_video_features(**picture, return_dict=True).pooler_output  # [1, slots, hidden]
        return pooled[0]
