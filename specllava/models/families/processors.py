"""Processors over PIL: transformers' own of the same families cannot be built without torchvision.

The signature of each names what is read from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    InternVLProcessor,
    LlavaNextVideoProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
    VideoLlavaProcessor,
)
from transformers.video_utils import VideoMetadata

FRAME_SLOTS: Final = (128, 768)  # of a Qwen's frame at least and at most, as in its makers' qwen-vl-utils


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


class QwenVideos(ProcessorMixin):
    """What the processors of the Qwens make of videos: frames are scaled by PIL and put together in time."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template)

    @property
    def video_processor(self) -> Any:
        """The picture processor, whose patches and slots are those of videos too."""
        return self.image_processor

    def _process_videos(
        self, videos: Any, video_metadata: Sequence[Mapping[str, Any]], **_: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """Return patches and grids of all videos, and the tokens of each.

        A picture's patch holds its pixels once for each time, so a video's takes them from as many frames.
        """
        images = self.image_processor
        slot = (images.patch_size * images.merge_size) ** 2  # pixels
        most = min(images.size["longest_edge"], FRAME_SLOTS[1] * slot)
        bounds = {"shortest_edge": min(FRAME_SLOTS[0] * slot, most), "longest_edge": most}
        depth, patches, grids = images.temporal_patch_size, list[Tensor](), list[Tensor]()
        for frames in videos:
            read = images([*frames, *[frames[-1]] * (-len(frames) % depth)], size=bounds, return_tensors="pt")
            grid = read["image_grid_thw"][0]
            count, steps = int(grid.prod()), len(read["image_grid_thw"]) // depth
            pixels = read["pixel_values"].view(steps, depth, count, 3, depth, -1)[..., 0, :]
            patches.append(pixels.permute(0, 2, 3, 1, 4).reshape(steps * count, -1))
            grids.append(torch.tensor([steps, *grid[1:].tolist()]))
        made = {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.stack(grids)}
        made |= self._times(video_metadata)
        return made, [self.replace_video_token(made, number) for number in range(len(videos))]

    def _times(self, video_metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return arguments of model or prompt with the times of all videos; none by default."""
        return {}


class Qwen2VLProcessorPil(QwenVideos, Qwen2VLProcessor):
    """Qwen2-VL's processor; those of Qwen2.5-VL and Qwen3-VL differ in the times of videos alone."""


class Qwen25VLProcessorPil(Qwen2VLProcessorPil):
    """Qwen2.5-VL's processor."""

    def _times(self, video_metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the seconds between the patches in time of each video."""
        depth, intervals = self.image_processor.temporal_patch_size, list[float]()
        for times in video_metadata:
            indices = times["frames_indices"]
            intervals.append(depth * (indices[-1] - indices[0]) / max(1, len(indices) - 1) / times["fps"])
        return {"second_per_grid_ts": torch.tensor(intervals)}


class Qwen3VLProcessorPil(QwenVideos, Qwen3VLProcessor):
    """Qwen3-VL's processor, which writes the seconds of each patch in time in front of its slots."""

    def _times(self, video_metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"video_metadata": [VideoMetadata(**times) for times in video_metadata]}

    def get_text_with_replacements(self, text: list[str], *replacements: Any) -> Any:
        """Replace the marks that a chat template puts around a video as well: each patch in time has its own.

        transformers did so up to 4.57 and now leaves them; the model was trained without.
        """
        marked = f"{self.vision_start_token}{self.video_token}{self.vision_end_token}"
        bare = [one.replace(marked, self.video_token) for one in text]
        return super().get_text_with_replacements(bare, *replacements)


class SquareFrames(ProcessorMixin):
    """What LLaVA-NeXT-Video's and Video-LLaVA's processors make of videos: frames are squares, scaled by PIL."""

    video_processor = None  # it is looked for, and not used
    skip_tensor_conversion = (*ProcessorMixin.skip_tensor_conversion, "pixel_values_videos")

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
        self.patch_size, self.num_additional_image_tokens = patch_size, num_additional_image_tokens
        self.vision_feature_select_strategy = vision_feature_select_strategy
        self.image_token, self.video_token = image_token, video_token
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([image_token, video_token])

    def _squares(self) -> CLIPImageProcessorPil:
        """Return a processor that scales and cuts pictures to the square that the tower reads."""
        names = "size", "crop_size", "resample", "image_mean", "image_std"
        return CLIPImageProcessorPil(**{name: getattr(self.image_processor, name) for name in names})

    def _process_videos(self, videos: Any, **_: Any) -> tuple[dict[str, Any], list[str]]:
        """Return the frames of all videos, and the tokens of each.

        Frames are ``[videos, frames, 3, height, width]``, or a list where videos have other numbers of them, which the
        model takes one by one.
        """
        squares = self._squares()
        frames = [squares(list(one), return_tensors="pt")["pixel_values"] for one in videos]
        alike = len({len(one) for one in frames}) == 1
        made = {"pixel_values_videos": torch.stack(frames) if alike else frames}
        return made, [self.replace_video_token(made, number) for number in range(len(videos))]


class LlavaNextVideoProcessorPil(SquareFrames, LlavaNextVideoProcessor):
    """LLaVA-NeXT-Video's processor."""


class VideoLlavaProcessorPil(SquareFrames, VideoLlavaProcessor):
    """Video-LLaVA's processor, whose pictures are such squares too; transformers' own names them as it did once."""

    def _process_images(self, images: Any, **_: Any) -> tuple[Any, list[str]]:
        made = self._squares()(images, return_tensors="pt")
        return made, [self.replace_image_token(made, number) for number in range(len(made["pixel_values"]))]


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
