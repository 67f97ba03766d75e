"""What a question is about: a picture, a toy scene, or several pictures, which a contact sheet shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Final

from PIL import Image, ImageDraw, ImageFont, ImageOps

from specllava.files import Split, scene_images
from specllava.models.images import open_image
from visual.page.notices import info
from visual.player.encoding import LONGEST_SIDE, data_address

SEEN: Final = {  # by family of a pair that has seen nothing but the toy world
    "toy": "The toy pair knows only its own cartoon scenes.",
    "smol": "The pair smol has seen cartoon scenes only.",
}
STRANGE = "This scene has a thing in a colour in which training never showed it."
PICTURE_PIXELS = 1344  # on the longer side: no family of models looks at more
UNKNOWN = "this picture is no longer kept: choose another one"
GAP: Final = 8
GROUND, LABEL, INK = "#3a4047", "#121417", "#ffffff"  # the ground is seen on a light and on a dark page
TEXT: Final = 38  # pixels, legible where the page shows the sheet at a quarter of its size
RATIOS: Final = (0.5, 2.0)  # width over height of a cell, at least and at most
Cell = tuple[Image.Image, str]  # a picture and its number


def family_of(pair: str) -> str:
    """Return what pairs of one target have in common in their names."""
    return pair.split("-")[0]


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the page: a file that stays, or an upload.

    Two are equal only if they are the same object.
    """

    file: str | None = None
    upload: Image.Image | None = None

    @property
    def uploaded(self) -> bool:
        """Whether a visitor uploaded it."""
        return self.upload is not None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return 0 if self.upload is None else image_bytes(self.upload)

    def open(self) -> Image.Image:
        """Return the picture as the models get it."""
        if self.upload is not None:
            return self.upload
        assert self.file is not None, "a picture is one of the two"
        return open_image(self.file)

    preview = open  # as the visitor sees it


@dataclass(frozen=True, eq=False)
class MediaList:
    """Several pictures of one question. Visitors see a contact sheet of them.

    Two are equal only if they are the same object, as with :class:`Picture`.
    """

    parts: tuple[Image.Image, ...]
    uploaded = True

    @property
    def nbytes(self) -> int:
        """Bytes of all pictures, and of the contact sheet."""
        return sum(map(image_bytes, (*self.parts, self._sheet)))

    def open(self) -> tuple[Image.Image, ...]:
        """Return the pictures as the models get them."""
        return self.parts

    def preview(self) -> Image.Image:
        """Return the contact sheet."""
        return self._sheet

    @cached_property
    def _sheet(self) -> Image.Image:
        return contact_sheet(self.parts)


@dataclass(frozen=True, eq=False)
class LostPicture:
    """A picture that is no longer kept. Whoever opens it gets a ``ValueError`` with the line that says so."""

    line: str
    uploaded = True
    nbytes = 0

    def open(self) -> Image.Image:
        raise ValueError(self.line)

    preview = open


@dataclass(frozen=True)
class NoPicture:
    """What a question about no picture is about."""

    uploaded = False
    nbytes = 0

    def open(self) -> tuple[Image.Image, ...]:
        """Return nothing, as the models get it."""
        return ()


# ``open`` returns the models' input.
PictureSource = Picture | MediaList | LostPicture | NoPicture


def address_of(source: PictureSource) -> str | None:
    """Return what the visitor sees as the ``data:`` address that a race about it holds too; ``None`` without a picture.

    Raises:
        ValueError: it is no longer kept.
    """
    return None if isinstance(source, NoPicture) else data_address(source.preview())


def image_bytes(image: Image.Image) -> int:
    """Return the bytes of a decoded picture."""
    return image.width * image.height * len(image.getbands())


def new_scene(split: Split) -> tuple[Picture, str | None, str]:
    """Choose a random scene. Returns state, image and notice; ``held-out`` ones hold a mix that training never had."""
    picture = Picture(file=str(random.choice(scene_images(split))))
    return picture, address_of(picture), info(STRANGE) if split == "held-out" else ""


def contact_sheet(media: Sequence[Image.Image]) -> Image.Image:
    """Draw pictures in rows, on a sheet that is not higher than wide, sides at most ``LONGEST_SIDE``."""
    cells = [(picture, str(number)) for number, picture in enumerate(media, start=1)]
    ratio = min(max(median(picture.width / picture.height for picture, _ in cells), RATIOS[0]), RATIOS[1])
    width, columns = max((_cell_width(len(cells), count, ratio), count) for count in range(1, len(cells) + 1))
    height = int(width / ratio)
    rows = -(-len(cells) // columns)
    used, high = (count * (side + GAP) + GAP for count, side in ((columns, width), (rows, height)))
    sheet = Image.new("RGB", (max(used, high), high), GROUND)
    left = (sheet.width - used) // 2 + GAP
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        _draw(sheet, cell, (left + column * (width + GAP), GAP + row * (height + GAP)), (width, height))
    return sheet


def _cell_width(cells: int, columns: int, ratio: float) -> int:
    """Return the width of a cell with which all cells fit a square of ``LONGEST_SIDE``."""
    rows = -(-cells // columns)
    wide, high = ((LONGEST_SIDE - GAP) // count - GAP for count in (columns, rows))
    return int(min(wide, high * ratio))


def _draw(sheet: Image.Image, cell: Cell, corner: tuple[int, int], size: tuple[int, int]) -> None:
    """Draw a cell: the whole picture in its middle, the label in the picture's corner."""
    (picture, label), (left, top), (width, height) = cell, corner, size
    small = ImageOps.contain(picture, size)
    x, y = left + (width - small.width) // 2, top + (height - small.height) // 2
    sheet.paste(small, (x, y))
    text = min(TEXT, width // 3, height // 3)
    pen, font, edge = ImageDraw.Draw(sheet), ImageFont.load_default(text), text // 5
    right, bottom = x + int(pen.textlength(label, font)) + 2 * edge, y + text + edge
    pen.rounded_rectangle((x, y, right, bottom), edge, LABEL)
    pen.text((x + edge, (y + bottom) / 2), label, INK, font, anchor="lm")
