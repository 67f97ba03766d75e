"""LLaVA-NeXT-Video and Video-LLaVA, whose videos are frames in slots of their own, each frame one square."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlavaNextVideoForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    VideoLlavaForConditionalGeneration,
)

from specllava.models.families.interface import Picture, ProcessedPrompt, square
from specllava.models.families.llava import anyres_tiles, patches
from specllava.models.families.plain import Plain
from specllava.models.families.processors import LlavaNextVideoProcessorPil, VideoLlavaProcessorPil


class SquareVideos(Plain):
    """Family whose tower reads the frames of a video one by one."""

    reads_videos = True

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        return square(config, processor) | patches(config, processor)

    def videos(self, prompt: ProcessedPrompt) -> list[Picture]:
        return [{"pixel_values_videos": one[None]} for one in prompt.inputs["pixel_values_videos"]]

    def _embeddings(self, model: PreTrainedModel, picture: Picture) -> Tensor:
        if "pixel_values_videos" not in picture:
            return super()._embeddings(model, picture)
        pooled: Tensor = model.model.get_video_features(**picture, return_dict=True).pooler_output
        return pooled.flatten(0, -2)


class LlavaNextVideo(SquareVideos):
    """LLaVA-NeXT-Video: pictures as LLaVA-NeXT; of the patches of a frame four become one slot."""

    name, target, processor = "llava_next_video", LlavaNextVideoForConditionalGeneration, LlavaNextVideoProcessorPil

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        return [
            {"pixel_values": tiles[None, : anyres_tiles(prompt.config, size)], "image_sizes": torch.tensor([size])}
            for tiles, size in zip(prompt.inputs["pixel_values"], prompt.sizes, strict=True)
        ]  # after a picture's tiles are zeros


class VideoLlava(SquareVideos):
    """Video-LLaVA (arXiv 2311.10122): a tower for pictures and one for frames, whose class token has a slot too."""

    name, target, processor = "video_llava", VideoLlavaForConditionalGeneration, VideoLlavaProcessorPil
