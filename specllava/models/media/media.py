"""Pictures and videos, as a prompt shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from specllava.models.media.images import open_image


@dataclass(frozen=True, slots=True)
class Video:
    """A video as frames.

    Args:
        frames: RGB pictures of one size, in order.
        seconds: when each is shown, from the beginning of the video.
        draft_frames: how many of the frames a draft model watches, evenly taken; all of them without it. The target
            watches all, and decides every token: only guesses change.

    Raises:
        ValueError: no frame, frames of several sizes, times that are missing or run backwards, or more
            frames for the draft than there are.
    """

    frames: tuple[Image.Image, ...]
    seconds: tuple[float, ...]
    draft_frames: int | None = None

    def __post_init__(self) -> None:
        count, sizes = len(self.frames), {frame.size for frame in self.frames}
        if not count:
            raise ValueError("a video needs at least one frame")
        if len(sizes) > 1:
            raise ValueError(f"the frames of a video have one size, these have {len(sizes)}")
        if len(self.seconds) != count or list(self.seconds) != sorted(self.seconds):
            raise ValueError(f"a video of {count} frames needs as many times, in order: {len(self.seconds)} are given")
        if self.draft_frames is not None and not 1 <= self.draft_frames <= count:
            raise ValueError(f"the draft can watch 1 to {count} frames of a video of {count}, not {self.draft_frames}")

    def for_draft(self) -> Video:
        """Return the video that the draft watches."""
        if self.draft_frames is None:
            return self
        chosen = evenly(len(self.frames), self.draft_frames)
        return Video(tuple(self.frames[index] for index in chosen), tuple(self.seconds[index] for index in chosen))


def evenly(total: int, count: int) -> tuple[int, ...]:
    """Return which ``count`` of ``total`` frames are taken: the first of each of ``count`` equal parts.

    This is the rule of transformers' video processors (``BaseVideoProcessor.sample_frames``).
    """
    return tuple(number * total // count for number in range(count))


def metadata(video: Video) -> dict[str, Any]:
    """Return the times of a video as transformers' processors take them: frames of a clock of 1000 a second."""
    clock = 1000
    indices = [round(clock * second) for second in video.seconds]
    return {"total_num_frames": indices[-1] + 1, "fps": clock, "frames_indices": indices}


Media = Image.Image | Video
Picture = Media | str | Path | None  # as callers name it; a file is a picture's
Pictures = Picture | Sequence[Picture]


def open_media(given: Pictures) -> tuple[Media, ...]:
    """Open pictures; return pictures and videos in their order.

    Raises:
        ValueError: a picture that cannot be read.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(one if isinstance(one, Video) else open_image(one) for one in several if one is not None)


def for_draft(media: Sequence[Media]) -> list[Media]:
    """Return the media as a draft reads them: of a video, its draft frames."""
    return [one.for_draft() if isinstance(one, Video) else one for one in media]


def all_frames(media: Sequence[Media]) -> list[Image.Image]:
    """Return the pictures and the frames of the videos, in order."""
    return [frame for one in media for frame in (one.frames if isinstance(one, Video) else (one,))]
