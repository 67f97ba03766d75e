"""Picture of a run: its form inside a page."""

from __future__ import annotations

import base64
import io

from PIL import Image

LONGEST_SIDE = 512
JPEG_QUALITY = 88


def data_address(picture: Image.Image) -> str:
    """Encode :func:`small_jpeg` as a ``data:`` address."""
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(picture)).decode()


def small_jpeg(picture: Image.Image) -> bytes:
    """Encode a picture as JPEG, scaled down where a side is longer than ``LONGEST_SIDE`` pixels."""
    small = picture.convert("RGB")
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
