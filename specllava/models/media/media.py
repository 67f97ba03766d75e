"""Pictures, as a prompt shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from specllava.models.media.images import open_image

Picture = Image.Image | str | Path | None  # as callers name it
Pictures = Picture | Sequence[Picture]


def open_media(given: Pictures) -> tuple[Image.Image, ...]:
    """Open pictures, in their order.

    Raises:
        ValueError: a picture that cannot be read.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(open_image(one) for one in several if one is not None)
