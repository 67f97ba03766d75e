"""Qwen2.5-VL (arXiv 2502.13923): as Qwen2-VL, and a video's slots have positions in time by its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin, Qwen2_5_VLForConditionalGeneration

from specllava.models.families.interface import GridFeatures, Picture
from specllava.models.families.processors import Qwen25VLProcessorPil
from specllava.models.families.qwen_vl import Qwen2VL


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: most layers of its tower attend within windows; two frames of a video become one patch in time."""

    name, target = "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration
    processor, reads_videos = Qwen25VLProcessorPil, True

    def videos(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor]
    ) -> list[Picture]:
        grids, times = (inputs[name].split(1) for name in ("video_grid_thw", "second_per_grid_ts"))
        patches = inputs["pixel_values_videos"].split([int(grid.prod()) for grid in grids])
        names = "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"
        return [dict(zip(names, one, strict=True)) for one in zip(patches, grids, times, strict=True)]

    def _features(self, model: PreTrainedModel, picture: Picture) -> GridFeatures:
        if "video_grid_thw" not in picture:
            return super()._features(model, picture)
        grid, interval = picture["video_grid_thw"], float(picture["second_per_grid_ts"])
        (embeddings,) = model.model.get_video_features(picture["pixel_values_videos"], grid).pooler_output
        return GridFeatures(embeddings, grid, embeddings.new_empty((0, *embeddings.shape)), interval)

    def rope_index(self, model: PreTrainedModel, input_ids: Tensor, features: Sequence[GridFeatures]) -> Any:
        pictures = [one.grid for one in features if one.interval is None]
        videos = [(one.grid, one.interval) for one in features if one.interval is not None]
        return model.model.get_rope_index(
            input_ids,
            image_grid_thw=torch.cat(pictures) if pictures else None,
            video_grid_thw=torch.cat([grid for grid, _ in videos]) if videos else None,
            second_per_grid_ts=torch.tensor([interval for _, interval in videos]) if videos else None,
            **self.prompt_arguments(model.config, input_ids),
        )
