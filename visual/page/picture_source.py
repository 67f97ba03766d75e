"""What a question of the page is about: its interface."""

from __future__ import annotations

from typing import Protocol

from PIL import Image

from specllava.models.media.media import Media


class PictureSource(Protocol):
    """One picture, several, or a video: ``open`` returns the models' input, ``preview`` the picture on the page."""

    @property
    def uploaded(self) -> bool:
        """Whether it is a visitor's own."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds; 0 of what is read or drawn when it is needed."""

    def open(self) -> Image.Image | tuple[Media, ...]: ...

    def preview(self) -> Image.Image: ...
