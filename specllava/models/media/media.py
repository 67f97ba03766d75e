"""Pictures, as a prompt shows them."""

from __future__ import annotations

from PIL import Image

from specllava.models.media.images import ImageSource, open_image

Picture = ImageSource | None  # as callers name it
Pictures = Picture | list[Picture] | tuple[Picture, ...]


def open_media(given: Pictures) -> tuple[Image.Image, ...]:
    """Open pictures, in their order.

    Raises:
        ValueError: a picture that cannot be read.
    """
    several = given if isinstance(given, list | tuple) else [given]
    return tuple(open_image(one) for one in several if one is not None)
