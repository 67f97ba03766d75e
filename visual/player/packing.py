"""Writing of frames: as JSON, and long texts packed."""

from __future__ import annotations

import base64
import gzip
import json


def frame_json(data: dict[str, object]) -> str:
    """Write a frame as the list holds it."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def packed(text: str) -> str:
    """Pack a text as base64 of gzip, which the browser unpacks: a tree's figure becomes five times smaller."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
