"""Processors of pictures alone, over PIL: transformers' own of the same families cannot be built without torchvision.

The signature of each names what is read from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    CLIPImageProcessorPil,
    InternVLProcessor,
    LlavaNextVideoProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
    Qwen2VLProcessor,
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
    """InternVL's processor, likewise."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        image_seq_length: int = 256,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(image_processor, tokenizer, None, image_seq_length, chat_template)


class Qwen2VLProcessorPil(Qwen2VLProcessor):
    """Qwen2-VL's processor, likewise; those of Qwen2.5-VL and Qwen3-VL differ in videos alone."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template)


class LlavaNextVideoProcessorPil(LlavaNextVideoProcessor):
    """LLaVA-NeXT-Video's processor, whose frames are scaled to the square of the picture's whole by PIL."""

    skip_tensor_conversion = (*LlavaNextVideoProcessor.skip_tensor_conversion, "pixel_values_videos")

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        patch_size: int | None = None,
        vision_feature_select_strategy: str | None = None,
        video_token: str = "<video>",
        image_token: str = "<image>",
        num_additional_image_tokens: int = 0,
    ) -> None:
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.video_processor = None  # it is looked for, and not used
        self.patch_size, self.num_additional_image_tokens = patch_size, num_additional_image_tokens
        self.vision_feature_select_strategy = vision_feature_select_strategy
        self.image_token, self.video_token = image_token, video_token
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([image_token, video_token])

    def _process_videos(self, videos: Any, **_: Any) -> tuple[dict[str, Any], list[str]]:
        """Return the frames of all videos, and the tokens of each.

        Frames are ``[videos, frames, 3, height, width]``, or a list where videos have other numbers of them, which the
        model takes one by one.
        """
        images = self.image_processor
        squares = CLIPImageProcessorPil(
            **{name: getattr(images, name) for name in ("size", "crop_size", "resample", "image_mean", "image_std")}
        )
        frames = [squares(list(one), return_tensors="pt")["pixel_values"] for one in videos]
        alike = len({len(one) for one in frames}) == 1
        made = {"pixel_values_videos": torch.stack(frames) if alike else frames}
        return made, [self.replace_video_token(made, number) for number in range(len(videos))]


class PixtralProcessorPil(ProcessorMixin):
    """Pixtral's processor: a slot for every square of patches, a token behind each row and another behind the last.

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
        between, behind = self.ends
        return between.join([self.image_token * width] * height) + behind
