"""Backdrops: the sky, ground and weather of a picture, without its objects.

Contract: ``draw_backdrop`` returns the picture that objects are drawn on and ``draw_falling`` draws rain or snow over
them; both draw in unit space, on a canvas of any size, with every detail from the random generator passed in. Colours
are those of daylight; ``Stage.lit`` turns them into those of the scene's time and weather. Places stay paler or darker
than objects and have no outlines, so that nothing in them resembles an object.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from PIL import Image, ImageDraw

from recipes.toy.scene import Place, Time, Weather
from recipes.toy.shapes import SNOW, Fill, Pen, Point

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
LIGHT: Final[dict[Time, tuple[Fill, float]]] = {  # what a backdrop colour is mixed with, and how much
    "day": ((255, 255, 255), 0.0),
    "sunset": ((236, 116, 92), 0.27),
    "night": ((22, 30, 92), 0.58),
}


def mix(a: Fill, b: Fill, share: float) -> Fill:
    """Mix ``a`` with a ``share`` of ``b``."""
    return tuple(round(x + (y - x) * share) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class Stage:
    """Tools of a backdrop function: the pen, the light, and the random generator."""

    pen: Pen
    weather: Weather
    time: Time
    rng: random.Random

    @property
    def snowy(self) -> bool:
        return self.weather == "snowy"

    def lit(self, colour: Fill, snow: float = 0.0) -> Fill:
        """Return a daylight colour in the current light; ``snow`` is the share of white on it in snowy weather."""
        return lit(colour, self.time, snow if self.snowy else 0.0)

    def ridge(self, colour: Fill, y: float, height: float, waves: float, bottom: float = 0.6) -> None:
        """Draw rolling land from one side to the other, filled down to ``bottom``."""
        phase, second = self.rng.uniform(0, 6.28), self.rng.uniform(0, 6.28)
        tops: list[Point] = []
        for i in range(33):
            x = i / 32
            swing = math.sin(waves * 6.28 * x + phase) + 0.4 * math.sin(waves * 14 * x + second)
            tops.append((x, y - height * (0.5 + swing / 2.8)))
        self.pen.poly(colour, *tops, (1.0, bottom), (0.0, bottom))


@lru_cache(maxsize=1024)
def lit(colour: Fill, time: Time, snow: float) -> Fill:
    shade, share = LIGHT[time]
    return mix(mix(colour, SNOW, snow), shade, share)


def draw_backdrop(place: Place, weather: Weather, time: Time, canvas: int, rng: random.Random) -> Image.Image:
    """Draw sky, place and weather without rain or snow, as an RGB picture ``canvas`` pixels wide and high."""
    picture = _gradients(place, weather, time, canvas).resize((canvas, canvas), Image.Resampling.NEAREST)
    stage = Stage(Pen(ImageDraw.Draw(picture, "RGBA"), canvas), weather, time, rng)
    _sky(stage)
    DRAW_PLACE[place](stage)
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
        (_stars_and_moon if stage.time == "night" else _sun)(stage, x)
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
        pen.stroke((70, 80, 110), 0.007, (bx - span, by - span * 0.6), (bx, by), (bx + span, by - span * 0.6))


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
    for colour, drop in ((colours[1], 0.014), (colours[0], 0.0)):
        for dx, dy, r in ((-0.1, 0.01, 0.045), (-0.04, -0.02, 0.06), (0.04, -0.01, 0.055), (0.1, 0.015, 0.04)):
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


def _tufts(stage: Stage, colour: Fill, count: int) -> None:
    """Draw small bunches of grass, larger when nearer."""
    for _ in range(count):
        x, y = stage.rng.random(), stage.rng.uniform(0.56, 0.99)
        tall = 0.035 * y
        for lean in (-0.5, 0.0, 0.5):
            stage.pen.poly(stage.lit(colour, 0.5), (x - 0.006, y), (x + lean * tall, y - tall), (x + 0.006, y))


def _meadow(stage: Stage) -> None:
    stage.ridge(stage.lit((150, 200, 140), 0.6), 0.475, 0.07, 1.1)
    stage.ridge(stage.lit((190, 222, 130), 0.72), 0.5, 0.035, 0.8, 0.53)
    wood = stage.lit((198, 170, 130), 0.35)
    for i in range(11):
        x = i / 10
        stage.pen.box(wood, x - 0.009, 0.455, x + 0.009, 0.535)
    for y in (0.475, 0.503):
        stage.pen.box(wood, 0.0, y, 1.0, y + 0.011)
    _tufts(stage, (96, 156, 66), 12)
    for _ in range(0 if stage.snowy else 16):
        x, y = stage.rng.random(), stage.rng.uniform(0.57, 0.99)
        petal = stage.lit(stage.rng.choice(((252, 244, 250), (250, 226, 236), (255, 246, 190))))
        stage.pen.blob(petal, x, y, 0.009 * y + 0.002)
        stage.pen.blob(stage.lit((224, 170, 60)), x, y, 0.004 * y)


def _beach(stage: Stage) -> None:
    pen, rng = stage.pen, stage.rng
    for i in range(4):
        top = 0.45 + i * 0.028
        pen.box(stage.lit(mix((58, 142, 196), (112, 200, 216), i / 3)), 0.0, top, 1.0, 0.58)
    for _ in range(9):
        x, y = rng.random(), rng.uniform(0.462, 0.54)
        pen.box(stage.lit((206, 236, 246)), x, y, x + rng.uniform(0.03, 0.08), y + 0.005)
    phase = rng.uniform(0, 6.28)
    shore = [(i / 24, 0.565 + 0.012 * math.sin(i / 24 * 11 + phase)) for i in range(25)]
    pen.poly(stage.lit((246, 252, 255)), *shore, (1.0, 0.62), (0.0, 0.62))
    for drop, sand in ((0.014, (226, 202, 150)), (0.032, (248, 228, 180))):
        pen.poly(stage.lit(sand), *((x, y + drop) for x, y in shore), (1.0, 0.62), (0.0, 0.62))
    for _ in range(14):
        x, y = rng.random(), rng.uniform(0.64, 0.99)
        pen.blob(stage.lit(rng.choice(((222, 190, 128), (255, 246, 224), (240, 200, 180)))), x, y, 0.008 * y, 0.005 * y)


def _desert(stage: Stage) -> None:
    pen, rng = stage.pen, stage.rng
    stage.ridge(stage.lit((226, 176, 120)), 0.49, 0.11, 0.7)
    stage.ridge(stage.lit((236, 192, 132)), 0.51, 0.07, 1.0)
    for _ in range(3):
        _cactus(stage, rng.uniform(0.06, 0.94), rng.uniform(0.52, 0.55), rng.uniform(0.13, 0.18))
    stage.ridge(stage.lit((240, 200, 136)), 0.575, 0.045, 0.9, 0.62)
    for _ in range(8):
        x, y, span = rng.random(), rng.uniform(0.63, 0.97), rng.uniform(0.04, 0.09)
        pen.stroke(stage.lit((208, 156, 92)), 0.006, (x - span, y), (x, y - 0.008), (x + span, y))
    for _ in range(5):
        x, y = rng.random(), rng.uniform(0.6, 0.98)
        pen.dome(stage.lit((176, 128, 92)), x, y, 0.018 * y, 0.014 * y)


def _cactus(stage: Stage, x: float, y: float, tall: float) -> None:
    colour, wide = stage.lit((92, 126, 84)), tall * 0.2
    stage.pen.stroke(colour, wide, (x, y), (x, y - tall))
    for side, height in ((-1, 0.45), (1, 0.6)):
        elbow = (x + side * tall * 0.28, y - tall * height)
        tip = (elbow[0], elbow[1] - tall * 0.25)
        stage.pen.stroke(colour, wide * 0.75, (x, elbow[1]), elbow, tip)


def _forest(stage: Stage) -> None:
    for colour, count, base, low, high in (
        ((92, 122, 104), 15, 0.5, 0.2, 0.3),
        ((50, 78, 66), 12, 0.545, 0.17, 0.27),
    ):
        for i in range(count + 1):
            x = (i + stage.rng.uniform(-0.35, 0.35)) / count
            _fir(stage, stage.lit(colour), x, base, stage.rng.uniform(low, high))
    stage.pen.box(stage.lit((84, 104, 70), 0.6), 0.0, 0.53, 1.0, 0.56)
    _tufts(stage, (62, 92, 52), 16)
    for _ in range(0 if stage.snowy else 12):
        x, y = stage.rng.random(), stage.rng.uniform(0.58, 0.99)
        stage.pen.blob(stage.lit((138, 108, 72)), x, y, 0.012 * y, 0.006 * y)


def _fir(stage: Stage, colour: Fill, x: float, y: float, tall: float) -> None:
    pen = stage.pen
    for bottom, top, wide in ((0.0, 0.55, 0.25), (0.27, 0.8, 0.2), (0.52, 1.0, 0.14)):
        low = y - bottom * tall
        pen.poly(colour, (x - wide * tall, low), (x, y - top * tall), (x + wide * tall, low))
    if stage.snowy:
        snow = stage.lit((236, 242, 250))
        pen.poly(snow, (x - 0.06 * tall, y - 0.8 * tall), (x, y - tall), (x + 0.06 * tall, y - 0.8 * tall))


def _city(stage: Stage) -> None:
    pen, rng = stage.pen, stage.rng
    for wall, low, high, step in (((176, 186, 204), 0.22, 0.38, 0.11), ((132, 142, 164), 0.12, 0.28, 0.135)):
        x = -rng.uniform(0.0, 0.08)
        while x < 1.0:
            wide, tall = step * rng.uniform(0.8, 1.2), rng.uniform(low, high)
            pen.box(stage.lit(wall), x, 0.52 - tall, x + wide - 0.006, 0.53)
            if stage.snowy:
                pen.box(stage.lit((244, 247, 252)), x, 0.52 - tall, x + wide - 0.006, 0.532 - tall)
            _windows(stage, x, 0.52 - tall, wide)
            x += wide
    pen.box(stage.lit((150, 152, 160), 0.5), 0.0, 0.525, 1.0, 0.54)
    pen.box(stage.lit((96, 100, 112), 0.35), 0.0, 0.69, 1.0, 0.83)
    for y in (0.685, 0.83):
        pen.box(stage.lit((214, 216, 220), 0.5), 0.0, y, 1.0, y + 0.012)
    offset = rng.uniform(0.0, 0.16)
    for i in range(7):
        pen.box(stage.lit((232, 228, 214)), i * 0.16 - offset, 0.756, i * 0.16 - offset + 0.08, 0.768)


def _windows(stage: Stage, left: float, top: float, wide: float) -> None:
    lit_share = {"day": 0.0, "sunset": 0.35, "night": 0.6}[stage.time]
    dark, lamp = stage.lit((104, 116, 142)), (255, 222, 130)
    columns = max(2, int(wide / 0.034))
    gap = wide / (columns + 0.4)
    y = top + 0.026
    while y < 0.5:
        for i in range(columns):
            x = left + gap * (i + 0.3)
            stage.pen.box(lamp if stage.rng.random() < lit_share else dark, x, y, x + 0.014, y + 0.018)
        y += 0.04


def _mountains(stage: Stage) -> None:
    rng = stage.rng
    for colour, low, high, xs in (
        ((164, 178, 204), 0.2, 0.28, (0.02, 0.33, 0.66, 0.98)),
        ((118, 132, 164), 0.26, 0.36, (0.14, 0.5, 0.86)),
    ):
        for x in xs:
            _peak(stage, colour, x + rng.uniform(-0.05, 0.05), rng.uniform(low, high))
    stage.ridge(stage.lit((140, 164, 132), 0.6), 0.535, 0.05, 0.9, 0.56)
    for _ in range(9):
        x, y, r = rng.random(), rng.uniform(0.58, 0.99), rng.uniform(0.02, 0.032)
        stage.pen.dome(stage.lit((128, 130, 136), 0.4), x, y, r * y, r * y * 0.9)
        stage.pen.dome(stage.lit((160, 162, 168), 0.6), x - 0.002, y, r * y * 0.7, r * y * 0.75)
    _tufts(stage, (112, 138, 96), 8)


def _peak(stage: Stage, colour: Fill, x: float, tall: float) -> None:
    pen, base, wide = stage.pen, 0.53, tall * 0.72
    top = base - tall
    pen.poly(stage.lit(colour), (x - wide, base), (x, top), (x + wide, base))
    pen.poly(stage.lit(mix(colour, (0, 0, 0), 0.14)), (x, top), (x + wide, base), (x + wide * 0.15, base))
    cap, w = tall * 0.36, wide * 0.36
    zigzag = [(x + w, top + cap), (x + w * 0.5, top + cap * 0.8), (x + w * 0.1, top + cap * 1.15)]
    zigzag += [(x - w * 0.35, top + cap * 0.8), (x - w, top + cap)]
    pen.poly(stage.lit((250, 252, 255)), (x, top), *zigzag)


DRAW_PLACE: Final[dict[Place, Callable[[Stage], None]]] = {
    "meadow": _meadow, "beach": _beach, "desert": _desert, "forest": _forest, "city": _city, "mountains": _mountains,
}  # fmt: skip
