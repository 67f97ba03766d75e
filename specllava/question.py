"""A question about a picture, as whoever asks many of them holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a picture, or about none.

    Args:
        image: the picture, or where it lies.
        name: of the picture, for tables.
    """

    text: str
    image: Image.Image | Path | None = None
    name: str | None = None
