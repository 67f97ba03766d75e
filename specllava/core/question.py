"""A question about a picture, as whoever asks many of them holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a picture, about several, or about none.

    Args:
        image: the picture, or where it lies; several pictures, as a pair takes them.
        name: of the picture, for tables.
    """

    text: str
    image: Image.Image | Path | list[Any] | tuple[Any, ...] | None = None
    name: str | None = None
