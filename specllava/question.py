"""A question about a picture, as whoever asks many of them holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

Messages = str | Sequence[dict[str, Any]]  # one question, or a chat that ends with one


def with_system(question: str, system: str | None) -> Messages:
    """Return a question after a system turn; the question alone where there is none."""
    if system is None:
        return question
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a picture, about several, or about none.

    Args:
        image: the picture, or where it lies; several pictures, as a pair takes them.
        name: of the picture, for tables.
        system: text of the system turn, if there is one.
    """

    text: str
    image: Image.Image | Path | list[Any] | tuple[Any, ...] | None = None
    name: str | None = None
    system: str | None = None

    @property
    def messages(self) -> Messages:
        """The question as a pair takes it."""
        return with_system(self.text, self.system)
