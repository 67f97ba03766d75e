"""Contact sheets: several pictures, or frames of a video, as one picture that shows them in order."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from PIL import Image, ImageDraw, ImageFont, ImageOps

from specllava.models.media.media import Media, Video, evenly
from visual.player.picture import LONGEST_SIDE

SHOWN_FRAMES: Final = 8  # of a video
GAP: Final = 8
GROUND, LABEL, INK = "#3a4047", "#121417", "#ffffff"  # the ground stands out from a light and from a dark page
TEXT: Final = 38  # pixels, legible where the page shows the sheet at a quarter of its size
RATIOS: Final = (0.5, 2.0)  # width over height of a cell, at least and at most
Cell = tuple[Image.Image, str]  # a picture and its label, "" without


def contact_sheet(media: Sequence[Media]) -> Image.Image:
    """Draw pictures and frames in rows, on a sheet that is not higher than wide, sides at most ``LONGEST_SIDE``."""
    cells = cells_of(media)
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


def cells_of(media: Sequence[Media]) -> list[Cell]:
    """Return the cells of a sheet. Pictures are numbered where something else stands beside them; frames bear times."""
    cells = list[Cell]()
    for number, one in enumerate(media, start=1):
        name = str(number) if len(media) > 1 else ""
        if not isinstance(one, Video):
            cells.append((one, name))
            continue
        chosen = evenly(len(one.frames), min(SHOWN_FRAMES, len(one.frames)))
        cells += [(one.frames[place], _time(one.seconds[place])) for place in chosen]
    return cells


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes else f"{seconds:.1f} s"


def _cell_width(cells: int, columns: int, ratio: float) -> int:
    """Return the width of a cell with which all cells fit a square of ``LONGEST_SIDE``."""
    rows = -(-cells // columns)
    wide, high = ((LONGEST_SIDE - GAP) // count - GAP for count in (columns, rows))
    return int(min(wide, high * ratio))


def _draw(sheet: Image.Image, cell: Cell, place: tuple[int, int], size: tuple[int, int]) -> None:
    """Draw a cell: the whole picture in its middle, the label in the picture's corner."""
    (picture, label), (left, top), (width, height) = cell, place, size
    small = ImageOps.contain(picture.convert("RGB"), size)
    x, y = left + (width - small.width) // 2, top + (height - small.height) // 2
    sheet.paste(small, (x, y))
    if not label:
        return
    text = min(TEXT, width // 3, height // 3)
    pen, font, edge = ImageDraw.Draw(sheet), ImageFont.load_default(text), text // 5
    right, bottom = x + int(pen.textlength(label, font)) + 2 * edge, y + text + edge
    pen.rounded_rectangle((x, y, right, bottom), edge, LABEL)
    pen.text((x + edge, (y + bottom) / 2), label, INK, font, anchor="lm")
