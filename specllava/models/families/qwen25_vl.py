"""Qwen2.5-VL (arXiv 2502.13923): as Qwen2-VL, and a video's slots have positions in time by its seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin, Qwen2_5_VLForConditionalGeneration

from specllava.models.families.interface import GridFeatures, Picture
from specllava.models.families.processors import Qwen25VLProcessorPil
from specllava.models.families.qwen_vl import Qwen2VL

INTERVAL = "second_per_grid_ts"  # seconds from one patch in time to the next


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: most layers of its tower attend within windows."""

    name, target, processor = "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration, Qwen25VLProcessorPil

    def videos(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor]
    ) -> list[Picture]:
        found = super().videos(config, processor, inputs)
        return [one | {INTERVAL: time} for one, time in zip(found, inputs[INTERVAL].split(1), strict=True)]

    def _features(self, model: PreTrainedModel, picture: Picture) -> GridFeatures:
        found = super()._features(model, picture)
        return replace(found, interval=float(picture[INTERVAL])) if found.video else found
