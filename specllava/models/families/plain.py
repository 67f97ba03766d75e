"""Families with ordinary positions, through transformers' own ``get_image_features``.

A picture's features are the embeddings of its image slots, in the space of the model that read it: tower and projector
ran once. A draft reads them through a projector of its own (``SlotDraft``), or each picture with a tower of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Gemma3ForConditionalGeneration,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    InternVLForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    SmolVLMForConditionalGeneration,
)

from specllava.models.checkpoint import Checkpoint
from specllava.models.families.interface import (
    Family,
    ImageFeatures,
    InternVLProcessorPil,
    LlavaOnevisionProcessorPil,
    Picture,
    ProcessedPrompt,
    split_tiles,
    square,
)
from specllava.models.tokens import TextProcessor


class Plain(Family):
    """Family that transformers encodes; it splits the processor's output into pictures."""

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        """Split the pixels, each row of which is a picture."""
        return [{"pixel_values": one} for one in prompt.inputs["pixel_values"].split(1)]

    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        return [self._embeddings(model, one) for one in pictures]

    def _embeddings(self, model: PreTrainedModel, picture: Picture) -> Tensor:
        """Return the embeddings of one picture's slots, ``[slots, hidden]``."""
        pooled = model.model.get_image_features(**picture, return_dict=True).pooler_output
        joined: Tensor = pooled if isinstance(pooled, Tensor) else torch.cat(list(pooled))
        return joined.flatten(0, -2)

    def stack(self, pictures: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(pictures)

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[Tensor]) -> list[int]:
        return [len(one) for one in features]

    def project(self, model: PreTrainedModel, features: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(features))


class LlavaOnevision(Plain):
    """LLaVA-OneVision (arXiv 2408.03326): one picture is read in tiles, of several each in one square."""

    name, target, processor = "llava_onevision", LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessorPil
    several_differ = True

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        vision = config.vision_config
        tokens = processor.num_image_tokens, (vision.image_size // vision.patch_size) ** 2
        return square(config, processor) | {"num_image_tokens": tokens}

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        counts = prompt.inputs["batch_num_images"]
        several = counts.repeat_interleave(counts).clamp(max=2)  # features do not depend on how many others there are
        names = "pixel_values", "image_sizes", "batch_num_images"
        read = prompt.inputs["pixel_values"], prompt.inputs["image_sizes"], several
        return [dict(zip(names, own, strict=True)) for own in zip(*(one.split(1) for one in read), strict=True)]


class InternVL(Plain):
    """InternVL 2.5 to 3.5 (arXiv 2504.10479): tiles of equal numbers of slots, then the whole picture."""

    name, target, processor = "internvl", InternVLForConditionalGeneration, InternVLProcessorPil

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        (side, _), (patch, _) = config.vision_config.image_size, config.vision_config.patch_size
        tokens = processor.image_seq_length, int(side // patch * config.downsample_ratio) ** 2
        return square(config, processor) | {"image_seq_length": tokens}

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        slots = torch.eq(prompt.inputs["input_ids"][0], prompt.config.image_token_id).nonzero()[:, 0]
        begins = torch.cat([slots.new_tensor([True]).bool(), slots.diff() > 1])  # pictures lie between two tokens
        counts = begins.cumsum(0).bincount()[1:] // prompt.config.image_seq_length
        return [{"pixel_values": tiles} for tiles in split_tiles(prompt.inputs["pixel_values"], counts.tolist())]


class Gemma3(Plain):
    """Gemma 3: a picture is one square of 256 slots, which attend to each other in both directions while it is read.

    Where the processor pans and scans, each crop is a picture of its own.
    """

    name, target = "gemma3", Gemma3ForConditionalGeneration
    bidirectional = True

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        tokens = processor.image_seq_length, config.mm_tokens_per_image
        return square(config, processor) | {"image_seq_length": tokens}

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": torch.eq(input_ids, config.image_token_id).int()}


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

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        count = prompt.processor.image_processor.get_number_of_image_patches
        tiles = [max(1, count(*size)[0]) for size in prompt.sizes]
        names = "pixel_values", "pixel_attention_mask"  # [1, tiles, …]
        read = zip(*(split_tiles(prompt.inputs[name][0], tiles) for name in names), strict=True)
        return [{name: one[None] for name, one in zip(names, parts, strict=True)} for parts in read]


class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM2 (arXiv 2504.05299), which write a picture as Idefics3 does."""

    name, target, processor = "smolvlm", SmolVLMForConditionalGeneration, Idefics3Processor


CAP: Final = "final_logit_softcapping"


class TextFamily(Family):
    """Language models of one class: every prompt is a text."""

    sees = False
    draft_advice = "name a smaller language model of the same tokens with --draft"

    def __init__(self, config: PretrainedConfig) -> None:
        self.name, self.target = config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

    def read_processor(self, checkpoint: Checkpoint) -> Any:
        return TextProcessor(checkpoint.tokenizer())

    def check(self, name: str, config: PretrainedConfig) -> None:
        if getattr(config, CAP, None) is not None:
            raise ValueError(
                f"{name} has {CAP} {getattr(config, CAP)}: its logits are capped after the head, which is not done here"
            )

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        return []

    def encode(self, *given: Any) -> Any:
        raise ValueError(f"a {self.name} reads no pictures")

    stack = project = encode  # type: ignore[assignment]

    def num_image_tokens(self, model: PreTrainedModel, features: Any) -> list[int]:
        return []
