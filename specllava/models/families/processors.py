"""Processors over PIL: transformers' own of the same families cannot be built without torchvision.

The signature of each names what is read from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import (
    InternVLProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
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


class PixtralProcessorPil(ProcessorMixin):
    """Pixtral's processor: a slot for every square of patches, a token after each row and another after the last.

    transformers reads its tokenizer as it is written, whatever class the checkpoint names, by the name of this class.
    """

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size, self.square = patch_size, patch_size * spatial_merge_size
        self.image_token, self.ends = image_token, (image_break_token, image_end_token)
        self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)

    def _process_images(self, images: Any, **options: Any) -> Any:
        return super()._process_images(images, **options | {"patch_size": self.square})

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int, **_: Any) -> str:
        """Return the tokens of a picture of the size to which it was scaled."""
        height, width = (int(side) // self.square for side in image_inputs["image_sizes"][image_idx])
        row_end, image_end = self.ends
        return row_end.join([self.image_token * width] * height) + image_end
