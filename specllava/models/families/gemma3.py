"""Gemma 3 (arXiv 2503.19786): layers with a sliding window between layers that attend to everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Gemma3ForConditionalGeneration, PretrainedConfig, ProcessorMixin

from specllava.models.families.interface import Picture, Size, square
from specllava.models.families.plain import Plain


class Gemma3(Plain):
    """Gemma 3: a picture is one square of 256 slots, which attend to each other in both directions while it is read.

    Where the processor pans and scans, each crop is a picture of its own.
    """

    name, target = "gemma3", Gemma3ForConditionalGeneration
    bidirectional = True

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        tokens = processor.image_seq_length, config.mm_tokens_per_image
        return square(config, processor) | {"image_seq_length": tokens}

    def pictures(
        self, config: PretrainedConfig, processor: ProcessorMixin, inputs: Mapping[str, Tensor], sizes: Sequence[Size]
    ) -> list[Picture]:
        return [{"pixel_values": square} for square in inputs["pixel_values"].split(1)]

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": torch.eq(input_ids, config.image_token_id).int()}
