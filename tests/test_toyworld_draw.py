"""What a picture of a scene must keep: every part can be drawn and told apart, and colours stay what they are."""

from __future__ import annotations

from itertools import product
from typing import get_args

from PIL import Image, ImageChops, ImageStat

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
    sample_any_scene,
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


def test_same_scene_same_pixels_and_the_seed_varies_details() -> None:
    for seed in range(12):
        scene = sample_any_scene(seed)
        assert draw_scene(scene).tobytes() == draw_scene(scene).tobytes()
    assert picture(seed=1).tobytes() != picture(seed=2).tobytes()


def test_any_size_shows_the_same_picture() -> None:
    for size in (1, 32, 57, 128, 336, 512):
        drawn = draw_scene(sample_any_scene(5), size)
        assert drawn.mode == "RGB" and drawn.size == (size, size)
        if size >= 32:
            reference = draw_scene(sample_any_scene(5), 128)
            difference = ImageChops.difference(drawn.resize((32, 32)), reference.resize((32, 32)))
            assert max(ImageStat.Stat(difference).mean) < 8


def test_an_object_changes_only_its_own_cell() -> None:
    for column, row, weather in product(COLUMNS, ROWS, WEATHERS):
        empty = picture(weather=weather)
        for kind in KINDS:
            for jitter in (-1.0, 0.0, 1.0):
                full = picture(thing(kind, column=column, row=row, jitter=jitter), weather=weather)
                left, top, right, bottom = ImageChops.difference(empty, full).getbbox() or (0, 0, 128, 128)
                centre, ground = COLUMN_X[column] * 128, ROW_Y[row] * 128
                assert abs((left + right) / 2 - centre) < 0.08 * 128
                assert right - left < 0.44 * 128
                assert top > ground - 0.36 * 128 and ground - 3 < bottom < ground + 8


def test_a_large_object_covers_far_more_than_a_small_one() -> None:
    for kind in KINDS:
        empty = picture()
        covered = {
            (size, row): area(changed(empty, picture(thing(kind, size=size, row=row))))
            for size in get_args(Size)
            for row in ROWS
        }
        assert covered["large", "back"] > 1.5 * covered["small", "front"]
        for row in ROWS:
            assert covered["large", row] > 2.2 * covered["small", row]
        for size in get_args(Size):
            assert covered[size, "front"] > covered[size, "back"]


def test_a_front_object_hides_at_most_a_quarter_of_one_behind_it() -> None:
    for kind, size in product(KINDS, get_args(Size)):
        behind = thing(kind, "yellow", size, row="back")
        alone = picture(behind)
        whole = changed(picture(), alone)
        for kind_in_front in KINDS:
            hidden = ImageChops.multiply(whole, changed(alone, picture(behind, thing(kind_in_front, "blue"))))
            assert area(hidden) <= 0.25 * area(whole), (kind, size, kind_in_front)


def test_the_front_row_is_drawn_over_the_back_row_whatever_the_order() -> None:
    back, front = thing("house", "red", row="back"), thing("tree", "blue")
    assert picture(back, front).tobytes() == picture(front, back).tobytes()
