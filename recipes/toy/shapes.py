"""The sixteen kinds of objects, each drawn by one function with a pen in its own unit box.

``SHAPES[kind](pen, paint)``: the object stands on y = 1 and fills most of the box; a few wide kinds reach a tenth over
it. Colours are flat: outline, edges and shadow are derived from the silhouette, for a uniform style.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from PIL import ImageDraw

from recipes.toy.scene import Colour, Kind

Fill = tuple[int, ...]
Point = tuple[float, float]

INK: Final[Fill] = (40, 32, 52)
SNOW: Final[Fill] = (255, 255, 255)
WOOD: Final[Fill] = (136, 88, 56)
CREAM: Final[Fill] = (250, 236, 208)
GLASS: Final[Fill] = (186, 228, 246)
METAL: Final[Fill] = (176, 182, 196)
LAMP: Final[Fill] = (255, 240, 150)
BEAK: Final[Fill] = (248, 152, 24)


class Pen:
    """Pen for unit space on a part of a picture: the unit square at ``origin`` is ``scale`` pixels wide."""

    def __init__(self, draw: ImageDraw.ImageDraw, scale: float, origin: Point = (0.0, 0.0)) -> None:
        self._draw, self._scale, self._origin = draw, scale, origin

    def _at(self, x: float, y: float) -> Point:
        return self._origin[0] + x * self._scale, self._origin[1] + y * self._scale

    def blob(self, fill: Fill, x: float, y: float, rx: float, ry: float | None = None) -> None:
        ry = rx if ry is None else ry
        self._draw.ellipse((self._at(x - rx, y - ry), self._at(x + rx, y + ry)), fill=fill)

    def box(self, fill: Fill, x0: float, y0: float, x1: float, y1: float, corner: float = 0.0) -> None:
        area = (self._at(x0, y0), self._at(x1, y1))
        if corner:
            self._draw.rounded_rectangle(area, corner * self._scale, fill=fill)
        else:
            self._draw.rectangle(area, fill=fill)

    def poly(self, fill: Fill, *points: Point) -> None:
        self._draw.polygon([self._at(x, y) for x, y in points], fill=fill)

    def soft(self, fill: Fill, *points: Point) -> None:
        """Draw a closed Catmull-Rom curve: it passes through every point and needs no control handles."""
        curve: list[Point] = []
        for i in range(len(points)):
            a, b, c, d = (points[(i + k) % len(points)] for k in (-1, 0, 1, 2))
            for t in (step / 6 for step in range(6)):
                w = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
                x, y = (sum(wi * p[axis] for wi, p in zip(w, (a, b, c, d), strict=True)) / 2 for axis in (0, 1))
                curve.append((x, y))
        self.poly(fill, *curve)

    def stroke(self, fill: Fill, width: float, *points: Point) -> None:
        """Draw a line with round ends and joints."""
        spots = [self._at(x, y) for x, y in points]
        pixels = max(1, round(width * self._scale))
        self._draw.line(spots, fill=fill, width=pixels, joint="curve" if len(spots) > 2 else None)
        if pixels > 2:
            for x, y in (spots[0], spots[-1]):
                r = (pixels - 1) / 2
                self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def arc(self, fill: Fill, width: float, x: float, y: float, r: float, start: float = 0, end: float = 360) -> None:
        pixels = max(1, round(width * self._scale))
        self._draw.arc((self._at(x - r, y - r), self._at(x + r, y + r)), start, end, fill=fill, width=pixels)

    def dome(self, fill: Fill, x: float, y: float, rx: float, ry: float) -> None:
        """Draw the upper half of an ellipse round (x, y)."""
        self._draw.pieslice((self._at(x - rx, y - ry), self._at(x + rx, y + ry)), 180, 360, fill=fill)


@dataclass(frozen=True, slots=True)
class Paint:
    """One colour's three tones, and a contrasting colour for spots and stripes."""

    base: Fill
    light: Fill
    dark: Fill
    spot: Fill = SNOW


PAINTS: Final[dict[Colour, Paint]] = {
    "red": Paint((228, 34, 42), (252, 84, 82), (172, 16, 36)),
    "orange": Paint((255, 132, 8), (255, 168, 66), (224, 98, 0)),
    "yellow": Paint((255, 220, 26), (255, 238, 116), (228, 178, 0)),
    "green": Paint((32, 170, 62), (96, 206, 104), (14, 122, 50)),
    "blue": Paint((34, 106, 238), (96, 158, 255), (18, 70, 182)),
    "purple": Paint((138, 54, 198), (176, 106, 232), (98, 28, 150)),
    "pink": Paint((255, 112, 186), (255, 166, 214), (224, 66, 146)),
    "white": Paint((248, 249, 252), (255, 255, 255), (206, 212, 226), spot=(150, 158, 178)),
}


def _cat(pen: Pen, p: Paint) -> None:
    pen.stroke(p.dark, 0.1, (0.7, 0.93), (0.86, 0.9), (0.95, 0.78), (0.93, 0.64), (0.85, 0.6))
    pen.soft(p.base, (0.5, 0.44), (0.7, 0.62), (0.76, 0.88), (0.64, 1.0), (0.36, 1.0), (0.24, 0.88), (0.3, 0.62))
    pen.blob(p.light, 0.5, 0.76, 0.12, 0.17)
    for side in (-1, 1):
        pen.blob(p.dark, 0.5 + side * 0.13, 0.96, 0.09, 0.05)
        pen.poly(p.base, (0.5 + side * 0.3, 0.36), (0.5 + side * 0.29, 0.0), (0.5 + side * 0.06, 0.2))
        pen.poly(p.dark, (0.5 + side * 0.24, 0.24), (0.5 + side * 0.245, 0.09), (0.5 + side * 0.13, 0.19))
    pen.blob(p.base, 0.5, 0.36, 0.32, 0.235)
    for side in (-1, 1):
        pen.blob(INK, 0.5 + side * 0.13, 0.34, 0.045, 0.06)
        pen.blob(SNOW, 0.515 + side * 0.13, 0.32, 0.016)
        pen.stroke(INK, 0.016, (0.5 + side * 0.14, 0.45), (0.5 + side * 0.36, 0.42))
        pen.stroke(INK, 0.016, (0.5 + side * 0.14, 0.48), (0.5 + side * 0.35, 0.5))
    pen.poly(INK, (0.455, 0.425), (0.545, 0.425), (0.5, 0.47))


def _dog(pen: Pen, p: Paint) -> None:
    pen.stroke(p.base, 0.09, (0.16, 0.56), (0.06, 0.44), (0.04, 0.26))
    for x in (0.24, 0.62):
        pen.box(p.dark, x, 0.6, x + 0.1, 0.97, 0.04)
    pen.soft(p.base, (0.1, 0.58), (0.2, 0.46), (0.6, 0.42), (0.76, 0.5), (0.74, 0.7), (0.56, 0.76), (0.16, 0.75))
    for x in (0.12, 0.52):
        pen.box(p.base, x, 0.6, x + 0.11, 1.0, 0.04)
        pen.box(p.light, x, 0.93, x + 0.15, 1.0, 0.03)
    pen.poly(p.base, (0.5, 0.46), (0.6, 0.26), (0.86, 0.4), (0.76, 0.62))
    pen.blob(p.base, 0.73, 0.26, 0.18, 0.17)
    pen.box(p.light, 0.72, 0.24, 1.0, 0.41, 0.07)
    pen.blob(INK, 0.965, 0.27, 0.05, 0.04)
    pen.stroke(INK, 0.018, (0.84, 0.36), (0.95, 0.35))
    pen.blob(INK, 0.79, 0.18, 0.032, 0.038)
    pen.soft(p.dark, (0.6, 0.14), (0.69, 0.2), (0.7, 0.38), (0.6, 0.46), (0.53, 0.36), (0.54, 0.2))
    pen.stroke(p.spot, 0.045, (0.56, 0.49), (0.76, 0.49))


def _horse(pen: Pen, p: Paint) -> None:
    pen.soft(p.dark, (0.82, 0.42), (0.94, 0.44), (1.0, 0.6), (0.96, 0.82), (0.9, 0.7), (0.88, 0.54))
    for x in (0.4, 0.68):
        pen.box(p.dark, x, 0.55, x + 0.075, 0.98)
    pen.soft(p.base, (0.28, 0.5), (0.42, 0.41), (0.76, 0.38), (0.89, 0.47), (0.86, 0.62), (0.6, 0.68), (0.34, 0.66))
    for x in (0.31, 0.78):
        pen.box(p.base, x, 0.55, x + 0.085, 1.0)
        pen.box(INK, x - 0.005, 0.94, x + 0.095, 1.0)
    pen.soft(p.dark, (0.26, 0.02), (0.42, 0.1), (0.5, 0.3), (0.58, 0.45), (0.4, 0.44), (0.3, 0.2))
    pen.poly(p.base, (0.28, 0.6), (0.19, 0.3), (0.22, 0.08), (0.35, 0.1), (0.47, 0.46))
    pen.soft(p.base, (0.3, 0.06), (0.34, 0.18), (0.2, 0.33), (0.08, 0.41), (0.0, 0.36), (0.04, 0.24), (0.18, 0.09))
    pen.poly(p.base, (0.22, 0.1), (0.25, -0.03), (0.32, 0.1))
    pen.soft(p.light, (0.1, 0.26), (0.13, 0.35), (0.07, 0.41), (0.0, 0.36), (0.03, 0.27))
    pen.blob(INK, 0.19, 0.18, 0.028, 0.034)
    pen.blob(INK, 0.04, 0.33, 0.016)


def _duck(pen: Pen, p: Paint) -> None:
    for x in (0.38, 0.54):
        pen.stroke(BEAK, 0.05, (x, 0.86), (x, 0.97), (x + 0.09, 0.97))
    pen.soft(
        p.base, (0.0, 0.42), (0.2, 0.52), (0.5, 0.46), (0.8, 0.48), (0.88, 0.68), (0.7, 0.88), (0.34, 0.9), (0.08, 0.72)
    )
    pen.blob(p.base, 0.66, 0.29, 0.21, 0.2)
    pen.soft(p.dark, (0.18, 0.6), (0.44, 0.55), (0.62, 0.64), (0.52, 0.77), (0.3, 0.76))
    pen.soft(p.light, (0.2, 0.6), (0.44, 0.56), (0.57, 0.62), (0.46, 0.69), (0.3, 0.68))
    pen.poly(BEAK, (0.83, 0.22), (1.03, 0.31), (1.0, 0.37), (0.82, 0.38))
    pen.stroke(INK, 0.016, (0.85, 0.315), (0.99, 0.335))
    pen.blob(INK, 0.73, 0.23, 0.04, 0.05)
    pen.blob(SNOW, 0.745, 0.21, 0.015)


def _wheel(pen: Pen, x: float, y: float, r: float) -> None:
    pen.blob(INK, x, y, r)
    pen.blob(METAL, x, y, r * 0.48)


def _car(pen: Pen, p: Paint) -> None:
    pen.soft(p.base, (0.2, 0.62), (0.3, 0.4), (0.42, 0.36), (0.6, 0.36), (0.7, 0.42), (0.82, 0.62), (0.5, 0.7))
    pen.box(p.base, -0.03, 0.58, 1.03, 0.9, 0.11)
    pen.box(p.dark, -0.01, 0.8, 1.01, 0.89, 0.045)
    pen.poly(GLASS, (0.28, 0.6), (0.34, 0.45), (0.47, 0.43), (0.47, 0.6))
    pen.poly(GLASS, (0.53, 0.6), (0.53, 0.43), (0.64, 0.45), (0.73, 0.6))
    pen.stroke(p.dark, 0.016, (0.5, 0.62), (0.5, 0.8))
    pen.stroke(p.light, 0.03, (0.06, 0.64), (0.9, 0.64))
    pen.blob(LAMP, 0.97, 0.69, 0.045)
    _wheel(pen, 0.22, 0.88, 0.125)
    _wheel(pen, 0.78, 0.88, 0.125)


def _bus(pen: Pen, p: Paint) -> None:
    pen.box(p.base, -0.08, 0.14, 1.08, 0.9, 0.08)
    pen.box(p.light, -0.05, 0.15, 1.05, 0.22, 0.035)
    pen.box(p.dark, -0.08, 0.8, 1.08, 0.9, 0.04)
    for x in (-0.03, 0.17, 0.37, 0.57):
        pen.box(GLASS, x, 0.27, x + 0.155, 0.47, 0.03)
    pen.box(GLASS, 0.78, 0.27, 0.92, 0.8, 0.02)
    pen.stroke(p.dark, 0.02, (0.85, 0.27), (0.85, 0.8))
    pen.box(GLASS, 0.97, 0.27, 1.08, 0.52, 0.02)
    pen.box(p.spot, -0.08, 0.57, 0.75, 0.625)
    pen.blob(LAMP, 1.04, 0.7, 0.04)
    _wheel(pen, 0.16, 0.89, 0.12)
    _wheel(pen, 0.66, 0.89, 0.12)


def _bicycle(pen: Pen, p: Paint) -> None:
    back, front, pedal, saddle, bar = (0.2, 0.74), (0.82, 0.74), (0.46, 0.74), (0.38, 0.4), (0.72, 0.38)
    for x, y in (back, front):
        pen.arc(p.base, 0.085, x, y, 0.26)
        pen.stroke(METAL, 0.018, (x - 0.18, y), (x + 0.18, y))
        pen.stroke(METAL, 0.018, (x, y - 0.18), (x, y + 0.18))
    pen.stroke(p.base, 0.075, back, saddle, bar, pedal, back)
    pen.stroke(p.base, 0.075, saddle, pedal)
    pen.stroke(p.base, 0.075, front, bar, (0.69, 0.24))
    pen.stroke(INK, 0.06, (0.57, 0.22), (0.69, 0.24), (0.78, 0.3))
    pen.stroke(p.base, 0.06, saddle, (0.35, 0.3))
    pen.soft(INK, (0.24, 0.24), (0.36, 0.25), (0.48, 0.27), (0.36, 0.33), (0.25, 0.31))
    pen.blob(p.dark, *pedal, 0.06)


def _boat(pen: Pen, p: Paint) -> None:
    pen.box(WOOD, 0.46, -0.04, 0.52, 0.74)
    pen.soft(p.base, (0.55, 0.0), (0.78, 0.24), (0.95, 0.58), (0.74, 0.63), (0.55, 0.62))
    pen.poly(p.light, (0.43, 0.12), (0.43, 0.61), (0.1, 0.61))
    pen.box(p.dark, 0.55, 0.38, 0.86, 0.45)
    pen.soft(p.base, (-0.04, 0.68), (0.5, 0.72), (1.04, 0.66), (0.9, 0.9), (0.76, 0.98), (0.22, 0.98), (0.08, 0.9))
    pen.poly(p.dark, (0.1, 0.9), (0.9, 0.9), (0.78, 0.99), (0.22, 0.99))
    pen.stroke(p.spot, 0.045, (0.04, 0.77), (0.96, 0.77))


def _house(pen: Pen, p: Paint) -> None:
    pen.box(p.dark, 0.7, 0.06, 0.83, 0.4)
    pen.box(p.base, 0.1, 0.42, 0.9, 1.0)
    pen.poly(p.dark, (-0.04, 0.48), (0.5, 0.0), (1.04, 0.48))
    pen.poly(p.base, (0.1, 0.42), (0.5, 0.07), (0.9, 0.42))
    pen.blob(LAMP, 0.5, 0.3, 0.07)
    pen.box(WOOD, 0.56, 0.62, 0.76, 1.0, 0.03)
    pen.blob(LAMP, 0.71, 0.82, 0.022)
    pen.box(CREAM, 0.18, 0.58, 0.46, 0.84)
    pen.box(LAMP, 0.205, 0.605, 0.435, 0.815)
    pen.stroke(CREAM, 0.025, (0.32, 0.6), (0.32, 0.82))
    pen.stroke(CREAM, 0.025, (0.2, 0.71), (0.44, 0.71))


def _tent(pen: Pen, p: Paint) -> None:
    for side in (-1, 1):
        pen.stroke(WOOD, 0.035, (0.5 - side * 0.06, 0.04), (0.5 + side * 0.04, 0.22))
        pen.stroke(CREAM, 0.022, (0.5 + side * 0.3, 0.58), (0.5 + side * 0.56, 0.98))
    pen.poly(p.base, (0.5, 0.14), (1.0, 1.0), (0.0, 1.0))
    pen.poly(p.light, (0.5, 0.14), (0.2, 1.0), (0.0, 1.0))
    pen.poly(p.dark, (0.5, 0.14), (0.8, 1.0), (1.0, 1.0))
    pen.poly(INK, (0.5, 0.42), (0.66, 1.0), (0.34, 1.0))
    pen.soft(p.light, (0.5, 0.4), (0.42, 0.76), (0.3, 1.0), (0.36, 1.0), (0.46, 0.8))


def _tree(pen: Pen, p: Paint) -> None:
    pen.poly(WOOD, (0.42, 0.6), (0.58, 0.6), (0.6, 0.92), (0.67, 1.0), (0.33, 1.0), (0.4, 0.92))
    for x, y, r in ((0.24, 0.5, 0.2), (0.76, 0.5, 0.2), (0.5, 0.56, 0.2)):
        pen.blob(p.dark, x, y, r)
    for x, y, r in ((0.5, 0.4, 0.28), (0.3, 0.4, 0.2), (0.7, 0.4, 0.2), (0.5, 0.2, 0.24), (0.3, 0.28, 0.17)):
        pen.blob(p.base, x, y, r)
    pen.blob(p.base, 0.7, 0.28, 0.17)
    for x, y, r in ((0.4, 0.17, 0.1), (0.62, 0.36, 0.07), (0.24, 0.38, 0.07)):
        pen.blob(p.light, x, y, r)


def _mushroom(pen: Pen, p: Paint) -> None:
    pen.soft(CREAM, (0.4, 0.52), (0.6, 0.52), (0.61, 0.8), (0.67, 0.98), (0.5, 1.01), (0.33, 0.98), (0.39, 0.8))
    pen.blob(p.dark, 0.5, 0.6, 0.48, 0.1)
    pen.dome(p.base, 0.5, 0.6, 0.52, 0.58)
    for x, y, rx, ry in ((0.5, 0.2, 0.09, 0.075), (0.24, 0.38, 0.065, 0.08), (0.76, 0.38, 0.065, 0.08)):
        pen.blob(p.spot, x, y, rx, ry)
    pen.blob(p.spot, 0.5, 0.46, 0.065, 0.055)


def _umbrella(pen: Pen, p: Paint) -> None:
    pen.stroke(WOOD, 0.05, (0.5, -0.02), (0.5, 0.89))
    pen.arc(WOOD, 0.05, 0.41, 0.88, 0.115, 0, 180)
    pen.dome(p.base, 0.5, 0.52, 0.54, 0.48)
    pen.soft(p.light, (0.5, 0.05), (0.36, 0.22), (0.3, 0.52), (0.5, 0.52), (0.7, 0.52), (0.64, 0.22))
    for x in (0.13, 0.87):
        pen.blob(p.base, x, 0.52, 0.17, 0.06)
    pen.blob(p.light, 0.5, 0.53, 0.2, 0.06)
    for x in (-1, 1):
        pen.stroke(p.dark, 0.022, (0.5, 0.05), (0.5 + x * 0.14, 0.22), (0.5 + x * 0.2, 0.53))


def _ball(pen: Pen, p: Paint) -> None:
    pen.blob(p.base, 0.5, 0.57, 0.43)
    pen.soft(p.spot, (0.085, 0.46), (0.5, 0.58), (0.915, 0.46), (0.915, 0.61), (0.5, 0.74), (0.085, 0.61))
    pen.blob(p.light, 0.36, 0.33, 0.09, 0.07)


def _chair(pen: Pen, p: Paint) -> None:
    for x in (0.2, 0.6):
        pen.box(p.dark, x, 0.5, x + 0.1, 0.9)
    pen.box(p.base, 0.12, 0.03, 0.78, 0.52, 0.08)
    for x in (0.26, 0.42, 0.58):
        pen.box(p.dark, x, 0.12, x + 0.06, 0.46, 0.03)
    for x in (0.2, 0.84):
        pen.box(p.base, x, 0.62, x + 0.1, 1.0, 0.02)
    pen.poly(p.light, (0.12, 0.5), (0.76, 0.5), (0.97, 0.64), (0.18, 0.64))
    pen.poly(p.base, (0.17, 0.63), (0.97, 0.63), (0.97, 0.73), (0.17, 0.73))


def _robot(pen: Pen, p: Paint) -> None:
    pen.stroke(METAL, 0.04, (0.5, 0.02), (0.5, 0.14))
    pen.blob(LAMP, 0.5, 0.02, 0.055)
    for side in (-1, 1):
        pen.stroke(p.dark, 0.09, (0.5 + side * 0.28, 0.52), (0.5 + side * 0.42, 0.56), (0.5 + side * 0.43, 0.72))
        pen.blob(METAL, 0.5 + side * 0.43, 0.76, 0.07)
        pen.box(p.dark, 0.47 + side * 0.15, 0.8, 0.53 + side * 0.15, 0.96)
        pen.box(p.base, 0.39 + side * 0.16, 0.92, 0.61 + side * 0.16, 1.0, 0.03)
    pen.box(METAL, 0.42, 0.4, 0.58, 0.5)
    pen.box(p.base, 0.2, 0.12, 0.8, 0.43, 0.05)
    pen.box(p.base, 0.22, 0.47, 0.78, 0.86, 0.04)
    for x in (0.36, 0.64):
        pen.blob(SNOW, x, 0.26, 0.085)
        pen.blob(INK, x, 0.26, 0.045)
    pen.stroke(INK, 0.03, (0.38, 0.38), (0.62, 0.38))
    pen.box(p.light, 0.31, 0.55, 0.69, 0.77, 0.03)
    pen.blob(BEAK, 0.4, 0.66, 0.045)
    pen.blob(GLASS, 0.58, 0.66, 0.055)


SHAPES: Final[dict[Kind, Callable[[Pen, Paint], None]]] = {
    "cat": _cat, "dog": _dog, "horse": _horse, "duck": _duck, "car": _car, "bus": _bus, "bicycle": _bicycle,
    "boat": _boat, "house": _house, "tent": _tent, "tree": _tree, "mushroom": _mushroom, "umbrella": _umbrella,
    "ball": _ball, "chair": _chair, "robot": _robot,
}  # fmt: skip
