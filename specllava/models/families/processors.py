"""Processors over PIL: transformers' own of the same families cannot be built without torchvision.

The signature of each names what is read from a checkpoint.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    InternVLProcessor,
    LlavaOnevisionProcessor,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
)


class LlavaOnevisionProcessorPil(LlavaOnevisionProcessor):
    """LLaVA-OneVision's processor without its video processor."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        num_image_tokens: int | None = None,
        vision_feature_select_strategy: str | None = None,
        chat_template: str | None = None,
        image_token: str = "<image>",
        video_token: str = "<video>",
        vision_aspect_ratio: str = "anyres_max_9",
    ) -> None:
        super().__init__(
            image_processor,
            tokenizer,
            None,
            num_image_tokens,
            vision_feature_select_strategy,
            chat_template,
            image_token,
            video_token,
            vision_aspect_ratio,
        )


class InternVLProcessorPil(InternVLProcessor):
    """InternVL's processor without its video processor."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        image_seq_length: int = 256,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(image_processor, tokenizer, None, image_seq_length, chat_template)


class Qwen2VLProcessorPil(Qwen2VLProcessor):
    """Qwen2-VL's and Qwen2.5-VL's processor without its video processor."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template)


class Qwen3VLProcessorPil(Qwen3VLProcessor):
    """Qwen3-VL's processor without its video processor."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template)
