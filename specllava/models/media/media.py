"""Media of a user's message: pictures and videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from specllava.models.media.images import open_image
from specllava.models.media.video import Video

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
