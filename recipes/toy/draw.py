"""Drawing of a scene as a flat picture.

Contract: ``draw_scene`` returns the same pixels for the same scene and size, and an object's pixels depend on nothing
but that object. Backdrop and weather take their details from ``scene.seed`` alone. Objects keep their colours at
sunset and at night, because a colour must match the scene's data; only the backdrop changes its light.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from recipes.toy.backdrops import draw_backdrop, draw_falling
from recipes.toy.scene import Colour, Column, Kind, Row, Scene, Size, Thing
from recipes.toy.shapes import INK, PAINTS, SHAPES, SNOW, Fill, Pen

SUPERSAMPLE: Final = 2
COLUMN_X: Final[dict[Column, float]] = {"left": 1 / 6, "middle": 1 / 2, "right": 5 / 6}
ROW_Y: Final[dict[Row, float]] = {"back": 0.61, "front": 0.93}
ROW_SCALE: Final[dict[Row, float]] = {"back": 0.85, "front": 1.0}
EXTENT: Final[dict[Size, float]] = {"small": 0.18, "large": 0.32}
JITTER: Final = 0.045
CORE: Final = 0.4  # from the middle of its box an object is hardly ever missing so far, in boxes
REACH: Final = 0.58  # half the width of the widest kind, in boxes

MARGIN: Final = 0.14  # room for outline and shadow on every side of an object's box, in boxes
OUTLINE: Final = 0.0052  # in pictures: the same for small and large objects
FINE_PIXELS: Final = 260  # objects smaller than this are drawn three times larger first
SHADOW: Final[Fill] = (16, 16, 40, 84)
WATER: Final[Fill] = (90, 176, 226, 235)


def draw_scene(scene: Scene, size: int = 128) -> Image.Image:
    """Draw the scene as an RGB picture, ``size`` pixels wide and high (made for 32 to 1024)."""
    rng = random.Random(scene.seed)
    canvas = size * SUPERSAMPLE
    picture = draw_backdrop(scene.place, scene.weather, scene.time, canvas, rng)
    for thing in sorted(scene.things, key=lambda thing: ROW_Y[thing.row]):
        _place(picture, thing, canvas)
    draw_falling(picture, scene.weather, rng)
    return picture.reduce(SUPERSAMPLE)


def shown_at(scene: Scene, side: int) -> list[Thing | None]:
    """Return the content of each patch, row by row: an object that fills much of it, or none.

    Args:
        side: patches in a row and in a column. Every object has the patch that holds the middle of its box, and those
            whose own middle is not near the box's edge.
    """
    shown: list[Thing | None] = [None] * side**2
    for thing in scene.things:
        x, extent = _spot(thing)
        y = ROW_Y[thing.row] - extent / 2
        columns, rows = (
            {int(middle * side), *(i for i in range(side) if abs((i + 0.5) / side - middle) < CORE * extent)}
            for middle in (x, y)
        )
        for row in rows:
            for column in columns:
                shown[row * side + column] = thing
    return shown


def _spot(thing: Thing) -> tuple[float, float]:
    """Return the middle of an object's box from the left, and the side of the box, as shares of the picture's width."""
    extent = EXTENT[thing.size] * ROW_SCALE[thing.row]
    # A large object in an outer column stays inside the picture, and so moves inwards only.
    return min(max(COLUMN_X[thing.column] + thing.jitter * JITTER, extent * REACH), 1 - extent * REACH), extent


def _place(picture: Image.Image, thing: Thing, canvas: int) -> None:
    x, extent = _spot(thing)
    pixels = max(4, round(extent * canvas))
    outline = max(1.0, OUTLINE * canvas)
    figure = sprite(thing.kind, thing.colour, pixels, outline)
    left = round(x * canvas - figure.width / 2)
    top = round(ROW_Y[thing.row] * canvas - figure.height + MARGIN * pixels)
    picture.paste(figure, (left, top), figure)


@lru_cache(maxsize=512)  # in 20 MB for pictures of 128 pixels
def sprite(kind: Kind, colour: Colour, pixels: int, outline: float) -> Image.Image:
    """Draw an object on a transparent ground, with outline, shading and shadow: its box and a margin round it."""
    fine = 3 if pixels < FINE_PIXELS else 1
    side = round(pixels * (1 + 2 * MARGIN)) * fine
    scale, origin = pixels * fine, (MARGIN * pixels * fine, MARGIN * pixels * fine)
    flat = Image.new("RGBA", (side, side))
    SHAPES[kind](Pen(ImageDraw.Draw(flat), scale, origin), PAINTS[colour])
    body = flat.getchannel("A")
    # A dark edge below right and a light one above left: the silhouette against itself, moved a little.
    shift = max(1, round(0.035 * scale))
    dark = ImageChops.subtract(body, ImageChops.offset(body, -shift, -shift))
    light = ImageChops.subtract(body, ImageChops.offset(body, shift, shift))
    flat.paste(INK, mask=dark.point(lambda value: value * 22 // 100))
    flat.paste(SNOW, mask=light.point(lambda value: value * 30 // 100))
    flat.putalpha(body)

    whole = Image.new("RGBA", (side, side))
    ground = WATER if kind == "boat" else SHADOW
    Pen(ImageDraw.Draw(whole), scale, origin).blob(ground, 0.52, 0.985, 0.56, 0.085)
    whole = whole.filter(ImageFilter.BoxBlur(0.02 * scale))
    # Blurring and cutting low grows the silhouette evenly in all directions, with round corners.
    grown = body.filter(ImageFilter.GaussianBlur(outline * fine * 0.8)).point(lambda value: 255 * (value > 26))
    whole.paste(INK, mask=grown)
    whole.alpha_composite(flat)
    return whole.reduce(fine)
