"""Forms of data inside a page: frames as JSON, long texts packed, pictures as addresses."""

from __future__ import annotations

import base64
import gzip
import io
import json

from PIL import Image

LONGEST_SIDE = 512  # pixels
JPEG_QUALITY = 88


def frame_json(data: dict[str, object]) -> str:
    """Write a frame as the list holds it."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def packed(text: str) -> str:
    """Pack a text as base64 of gzip, which the browser unpacks: a tree's figure becomes five times smaller."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def data_address(picture: Image.Image) -> str:
    """Encode :func:`small_jpeg` as a ``data:`` address."""
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(picture)).decode()


def small_jpeg(picture: Image.Image) -> bytes:
    """Encode a picture as JPEG, scaled down where a side is longer than ``LONGEST_SIDE`` pixels."""
    small = picture.copy()
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
