"""A pen that draws in unit space, so that one drawing serves every picture size.

Contract: a ``Pen`` covers the square at ``origin`` that is ``scale`` pixels wide; (0, 0) is its upper left corner and
(1, 1) its lower right one. Points outside are fine and are cut off at the picture's edge.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import ImageDraw

Fill = tuple[int, ...]
Point = tuple[float, float]


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
        """Draw a closed shape that runs smoothly through ``points``."""
        self.poly(fill, *smooth(points))

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


def smooth(points: Sequence[Point], steps: int = 6) -> list[Point]:
    """Return the points of a closed Catmull-Rom curve: it passes through every point, needs no control handles."""
    curve: list[Point] = []
    count = len(points)
    for i in range(count):
        a, b, c, d = (points[(i + k) % count] for k in (-1, 0, 1, 2))
        for step in range(steps):
            t = step / steps
            w = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
            x, y = (sum(wi * p[axis] for wi, p in zip(w, (a, b, c, d), strict=True)) / 2 for axis in (0, 1))
            curve.append((x, y))
    return curve
