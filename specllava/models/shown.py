"""What a message of the user shows: pictures and videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from specllava.models.images import open_image
from specllava.models.video import Video

Shown = Image.Image | Video  # opened
Picture = Shown | str | Path | None  # as callers name it; a file is a picture's
Pictures = Picture | Sequence[Picture]


def opened(given: Pictures) -> tuple[Shown, ...]:
    """Return what is shown, opened, in its order.

    Raises:
        ValueError: a picture that cannot be read.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(one if isinstance(one, Video) else open_image(one) for one in several if one is not None)


def for_draft(shown: Sequence[Shown]) -> list[Shown]:
    """Return what a draft watches of it."""
    return [one.for_draft() if isinstance(one, Video) else one for one in shown]


def all_frames(shown: Sequence[Shown]) -> list[Image.Image]:
    """Return the pictures and the frames of the videos, in order."""
    return [frame for one in shown for frame in (one.frames if isinstance(one, Video) else (one,))]
