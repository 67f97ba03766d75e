"""What a picture of a scene must keep: every part can be drawn and told apart, and colours stay what they are."""

from __future__ import annotations

from itertools import cycle, product
from typing import get_args

from PIL import Image, ImageChops

from recipes.toy.draw import COLUMN_X, ROW_Y, draw_scene
from recipes.toy.scene import (
    COLUMNS,
    KINDS,
    NO_SNOW,
    PLACES,
    ROWS,
    TIMES,
    WEATHERS,
    Colour,
    Column,
    Kind,
    Place,
    Row,
    Scene,
    Size,
    Thing,
    Time,
    Weather,
)
from recipes.toy.shapes import SHAPES


def picture(
    *things: Thing,
    place: Place = "meadow",
    weather: Weather = "clear",
    time: Time = "day",
    size: int = 128,
    seed: int = 3,
) -> Image.Image:
    return draw_scene(Scene(place, weather, time, things, seed), size)


def thing(
    kind: Kind = "cat",
    colour: Colour = "red",
    size: Size = "large",
    column: Column = "middle",
    row: Row = "front",
    jitter: float = 0.0,
) -> Thing:
    return Thing(kind, colour, size, column, row, jitter)


def changed(a: Image.Image, b: Image.Image, threshold: int = 24) -> Image.Image:
    """A mask of the pixels that differ clearly."""
    bands = ImageChops.difference(a, b).split()
    most = ImageChops.lighter(ImageChops.lighter(bands[0], bands[1]), bands[2])
    return most.point([255 * (value > threshold) for value in range(256)])


def area(mask: Image.Image) -> int:
    return mask.histogram()[255]


def test_every_backdrop_draws_and_differs_from_all_others() -> None:
    for place in PLACES:
        weathers = [weather for weather in WEATHERS if not (weather == "snowy" and place in NO_SNOW)]
        pictures = [picture(place=place, weather=weather, time=time, size=64) for weather in weathers for time in TIMES]
        elsewhere = [picture(place=other, size=64) for other in PLACES if other != place]
        for i, one in enumerate(pictures):
            assert one.mode == "RGB" and one.size == (64, 64)
            for other in pictures[:i] + elsewhere:
                assert area(changed(one, other)) > 150


def test_every_kind_has_a_shape_and_an_own_look() -> None:
    assert set(SHAPES) == set(get_args(Kind))
    pictures = {kind: picture(thing(kind)) for kind in KINDS}
    for i, kind in enumerate(KINDS):
        for other in KINDS[:i]:
            assert area(changed(pictures[kind], pictures[other], 60)) > 250, (kind, other)


def test_an_object_changes_only_its_own_cell() -> None:
    for (column, row), weather in zip(product(COLUMNS, ROWS), cycle(WEATHERS), strict=False):
        empty = picture(weather=weather)
        for kind in KINDS:
            for jitter in (-1.0, 1.0):
                full = picture(thing(kind, column=column, row=row, jitter=jitter), weather=weather)
                left, top, right, bottom = ImageChops.difference(empty, full).getbbox() or (0, 0, 128, 128)
                centre, ground = COLUMN_X[column] * 128, ROW_Y[row] * 128
                assert abs((left + right) / 2 - centre) < 0.08 * 128
                assert right - left < 0.44 * 128
                assert top > ground - 0.36 * 128 and ground - 3 < bottom < ground + 8


def test_the_front_row_is_drawn_over_the_back_row_whatever_the_order() -> None:
    back, front = thing("house", "red", row="back"), thing("tree", "blue")
    assert picture(back, front).tobytes() == picture(front, back).tobytes()
