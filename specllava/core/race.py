"""A race: the traces of its lanes. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specllava.core.playable import Playable
from specllava.core.trace import DecodeTrace

if TYPE_CHECKING:
    from PIL import Image


class Race(Playable, dict[str, DecodeTrace]):
    """A trace per lane, by its name.

    Args:
        picture: what the models looked at, if it was one picture.
    """

    def __init__(self, traces: Mapping[str, DecodeTrace], picture: Image.Image | None = None) -> None:
        super().__init__(traces)
        self.picture = picture
