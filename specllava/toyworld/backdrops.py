"""Backdrops: the sky, ground and weather of a picture, without its objects.

Contract: ``draw_backdrop`` returns the picture that objects are drawn on and ``draw_falling`` draws rain or snow over
them; both draw in unit space, on a canvas of any size, with every detail from the random generator passed in.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw

from specllava.toyworld.pen import Fill, Pen
from specllava.toyworld.places import PLACES, Stage, lit, mix
from specllava.toyworld.scene import Place, Time, Weather

HORIZON: Final = 0.47
SKIES: Final[dict[Time, tuple[Fill, Fill]]] = {
    "day": ((86, 172, 240), (214, 238, 252)),
    "sunset": ((104, 78, 156), (255, 178, 118)),
    "night": ((12, 16, 48), (50, 60, 116)),
}
OVERCAST: Final[dict[Time, Fill]] = {"day": (158, 170, 186), "sunset": (150, 112, 126), "night": (34, 38, 60)}
OVERCAST_SHARE: Final[dict[Weather, float]] = {"clear": 0.0, "cloudy": 0.3, "rainy": 0.8, "snowy": 0.6}
CLOUDS: Final[dict[Time, tuple[Fill, Fill]]] = {
    "day": ((255, 255, 255), (214, 224, 238)),
    "sunset": ((255, 206, 190), (214, 150, 160)),
    "night": ((92, 98, 140), (66, 72, 112)),
}
RAIN_CLOUDS: Final[dict[Time, tuple[Fill, Fill]]] = {
    "day": ((138, 148, 166), (108, 118, 138)),
    "sunset": ((128, 98, 118), (100, 76, 98)),
    "night": ((60, 64, 92), (42, 46, 72)),
}
PATCHES: Final[dict[Weather, tuple[Fill, int]]] = {  # puddles and snow on the ground, and how many
    "rainy": ((172, 198, 222), 6),
    "snowy": ((250, 252, 255), 14),
}
# Ground colours: far and near.
GROUNDS: Final[dict[Place, tuple[Fill, Fill]]] = {
    "meadow": ((190, 222, 130), (146, 196, 92)),
    "beach": ((250, 232, 186), (238, 208, 146)),
    "desert": ((240, 200, 136), (224, 172, 104)),
    "forest": ((116, 138, 92), (92, 112, 72)),
    "city": ((190, 192, 198), (172, 174, 182)),
    "mountains": ((166, 180, 150), (138, 152, 126)),
}


def draw_backdrop(place: Place, weather: Weather, time: Time, canvas: int, rng: random.Random) -> Image.Image:
    """Draw sky, place and weather without rain or snow, as an RGB picture ``canvas`` pixels wide and high."""
    picture = _gradients(place, weather, time, canvas).resize((canvas, canvas), Image.Resampling.NEAREST)
    stage = Stage(Pen(ImageDraw.Draw(picture, "RGBA"), canvas), weather, time, rng)
    _sky(stage)
    PLACES[place](stage)
    if weather in PATCHES:
        colour, count = PATCHES[weather]
        for _ in range(count):
            y = rng.uniform(0.56, 1.0)
            stage.pen.blob(stage.lit(colour), rng.random(), y, 0.05 + 0.1 * y * rng.random(), 0.012 * y)
    return picture


@lru_cache(maxsize=128)
def _gradients(place: Place, weather: Weather, time: Time, canvas: int) -> Image.Image:
    """Draw sky and ground as a column one pixel wide."""
    cover = OVERCAST_SHARE[weather]
    high, low = (mix(colour, OVERCAST[time], cover) for colour in SKIES[time])
    far, near = (lit(colour, time, 0.72 if weather == "snowy" else 0.0) for colour in GROUNDS[place])
    if weather == "rainy":
        far, near = mix(far, OVERCAST[time], 0.2), mix(near, OVERCAST[time], 0.2)
    column = Image.new("RGB", (1, canvas))
    for row in range(canvas):
        y = row / canvas
        sky = y < HORIZON
        colour = mix(high, low, (y / HORIZON) ** 1.3) if sky else mix(far, near, (y - HORIZON) / (1 - HORIZON))
        column.putpixel((0, row), colour)
    return column


def _sky(stage: Stage) -> None:
    rng, pen = stage.rng, stage.pen
    x = rng.uniform(0.14, 0.86)
    if stage.weather == "clear":
        if stage.time == "night":
            _stars_and_moon(stage, x)
        else:
            _sun(stage, x)
        return
    if stage.time == "night" and stage.weather == "cloudy":
        pen.blob((238, 236, 210), x, 0.12, 0.055)
    cloudy = stage.weather == "cloudy"
    colours = (CLOUDS if cloudy else RAIN_CLOUDS)[stage.time]
    if stage.snowy:
        colours = (mix(colours[0], CLOUDS[stage.time][0], 0.6), mix(colours[1], CLOUDS[stage.time][1], 0.6))
    for i in range(3 if cloudy else 4):
        size = rng.uniform(0.75, 1.1) * (1.0 if cloudy else 1.3)
        _cloud(pen, colours, (i + rng.uniform(0.2, 0.8)) / (3 if cloudy else 4), rng.uniform(0.07, 0.24), size)


def _sun(stage: Stage, x: float) -> None:
    rng, pen = stage.rng, stage.pen
    if stage.time == "day":
        y, radius, core = rng.uniform(0.1, 0.16), 0.06, (255, 246, 190)
    else:
        y, radius, core = rng.uniform(0.3, 0.38), 0.085, (255, 232, 170)
    for grow, alpha in ((2.6, 26), (1.9, 42), (1.4, 70)):
        pen.blob((*core, alpha), x, y, radius * grow)
    pen.blob(core, x, y, radius)
    for _ in range(rng.randint(0, 3)):
        bx, by, span = rng.uniform(0.1, 0.9), rng.uniform(0.08, 0.28), rng.uniform(0.014, 0.022)
        bird = (70, 80, 110)
        pen.stroke(bird, 0.007, (bx - span, by - span * 0.6), (bx, by), (bx + span, by - span * 0.6))


def _stars_and_moon(stage: Stage, x: float) -> None:
    rng, pen = stage.rng, stage.pen
    for _ in range(26):
        pen.blob((255, 250, 220), rng.random(), rng.uniform(0.0, 0.4), rng.choice((0.003, 0.004, 0.006)))
    y = rng.uniform(0.1, 0.17)
    pen.blob((255, 244, 200, 40), x, y, 0.11)
    pen.blob((255, 246, 206), x, y, 0.065)
    for dx, dy, r in ((-0.02, -0.015, 0.014), (0.022, 0.012, 0.017), (-0.012, 0.03, 0.01)):
        pen.blob((234, 220, 176), x + dx, y + dy, r)


def _cloud(pen: Pen, colours: tuple[Fill, Fill], x: float, y: float, size: float) -> None:
    puffs = ((-0.1, 0.01, 0.045), (-0.04, -0.02, 0.06), (0.04, -0.01, 0.055), (0.1, 0.015, 0.04))
    for colour, drop in ((colours[1], 0.014), (colours[0], 0.0)):
        for dx, dy, r in puffs:
            pen.blob(colour, x + dx * size, y + (dy + drop) * size, r * size, r * 0.8 * size)


def draw_falling(picture: Image.Image, weather: Weather, rng: random.Random) -> None:
    """Draw rain or snow in front of everything."""
    pen = Pen(ImageDraw.Draw(picture, "RGBA"), picture.width)
    if weather == "rainy":
        for _ in range(54):
            x, y, length = rng.uniform(-0.02, 1.06), rng.uniform(-0.05, 1.0), rng.uniform(0.03, 0.055)
            pen.stroke((222, 236, 252, 185), 0.008, (x, y), (x - length * 0.35, y + length))
    elif weather == "snowy":
        for _ in range(64):
            pen.blob((255, 255, 255, 225), rng.random(), rng.random(), rng.choice((0.005, 0.007, 0.009)))
