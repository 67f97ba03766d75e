"""A step's figure as plain SVG, for before Plotly is there: the same places, colours and labels, drawn by no script.

It has the room's width whatever that is, as Plotly's has: places across are percentages, and only edges are stretched.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from plotly.colors import sample_colorscale

from visual.theme import COLOURSCALE, UNKNOWN
from visual.tree_figure import Drawing

ROW_PIXELS, TALLEST = 36, 760  # as in step.js
PADDING = 4  # the figure's margin
HALO = 14
Point = tuple[float, float]
SYMBOLS = {  # outlines for a radius of 1
    "circle": "M1,0A1,1 0 1,1 0,-1A1,1 0 0,1 1,0Z",
    "circle-open": "M1,0A1,1 0 1,1 0,-1A1,1 0 0,1 1,0Z",
    "square-x": "M1,1H-1V-1H1ZM1,1L-1,-1M1,-1L-1,1",
    "diamond": "M1.3,0L0,1.3L-1.3,0L0,-1.3Z",
}


def tree_height(figure: Drawing) -> float:
    """Pixels that the page gives to the figure."""
    return float(min(TALLEST, figure["layout"]["meta"]["rows"] * ROW_PIXELS))


def still_tree(figure: Drawing, chosen: int) -> str:
    """The figure as an ``<svg>``, with a halo behind the ``chosen`` node; what is switched off is left out."""
    layout = figure["layout"]
    (left, right), (bottom, top) = layout["xaxis"]["range"], layout["yaxis"]["range"]
    height = tree_height(figure) - 2 * PADDING

    def place(point: Point) -> Point:
        """Percent across, pixels down."""
        return round(100 * (point[0] - left) / (right - left), 3), round(height * (top - point[1]) / (top - bottom), 2)

    shown = [trace for trace in figure["data"] if trace.get("visible", True)]
    lines = "".join(_line(trace, [place(p) for p in run]) for trace in shown for run in _runs(trace))
    nodes = "".join(_nodes(trace, layout, [place(p) for p in _points(trace)], chosen) for trace in shown)
    return (
        f'<svg class="still" width="100%" height="{height:g}" overflow="visible" role="img" aria-label="Draft tree">'
        f'<svg width="100%" height="{height:g}" viewBox="0 0 100 {height:g}" preserveAspectRatio="none"'
        f' overflow="visible">{lines}</svg>{nodes}</svg>'
    )


def _points(trace: dict[str, Any]) -> list[Point]:
    return [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None and y is not None]


def _runs(trace: dict[str, Any]) -> Iterator[list[Point]]:
    """The edges of a trace: its points from gap to gap."""
    if trace["mode"] != "lines":
        return
    pairs = zip(trace["x"], trace["y"], strict=True)
    for gap, run in groupby(pairs, key=lambda pair: pair[0] is None):
        if not gap:
            yield list(run)


def _line(trace: dict[str, Any], run: Sequence[Point]) -> str:
    style = trace["line"]
    dash = f' stroke-dasharray="{style["dash"]}"' if "dash" in style else ""
    return (
        f'<path d="{_curve(run)}" fill="none" stroke="{style["color"]}" stroke-width="{style["width"]}"{dash}'
        ' vector-effect="non-scaling-stroke"/>'
    )


def _curve(run: Sequence[Point]) -> str:
    """Through all points, as smooth as Catmull and Rom; a straight line through two."""
    padded = [run[0], *run, run[-1]]
    path = f"M{run[0][0]:g},{run[0][1]:g}"
    for before, start, end, behind in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        first = [s + (e - b) / 6 for b, s, e in zip(before, start, end, strict=True)]
        second = [e - (h - s) / 6 for s, e, h in zip(start, end, behind, strict=True)]
        path += "C" + " ".join(f"{x:.6g},{y:.6g}" for x, y in (first, second, end))
    return path


def _nodes(trace: dict[str, Any], layout: dict[str, Any], places: Sequence[Point], chosen: int) -> str:
    ids = trace.get("customdata")
    if ids is None:
        return ""
    marker, font = trace["marker"], trace["textfont"]
    colours = marker["color"]
    fills = colours if isinstance(colours, list) else [colours] * len(ids)
    radius, line = marker["size"] / 2, marker["line"]
    weight = f' font-weight="{font["weight"]}"' if "weight" in font else ""
    marks, labels = [], []
    for node, (x, y), colour, label in zip(ids, places, fills, trace["text"], strict=True):
        halo = f'<circle class="chosen" r="{HALO}"/>' if node == chosen else ""
        fill = "none" if marker["symbol"].endswith("-open") else _colour(colour, layout)
        marks.append(
            f'<svg x="{x}%" y="{y}" overflow="visible">{halo}<path d="{SYMBOLS[marker["symbol"]]}" fill="{fill}"'
            f' transform="scale({radius:g})" stroke="{line["color"]}" stroke-width="{line["width"]}"'
            ' vector-effect="non-scaling-stroke"/></svg>'
        )
        if label:
            above = round(y - radius / 0.8 - 1 - font["size"] / 4, 2)  # where Plotly puts "top center"
            # A label is HTML already; read and written once more, so that nothing rests on that.
            labels.append(
                f'<text x="{x}%" y="{above}" text-anchor="middle" font-size="{font["size"]}"{weight}>'
                f"{html.escape(html.unescape(label))}</text>"
            )
    return (
        f'<g class="trace{trace["uid"]}"><g class="points">{"".join(marks)}</g>'
        f'<g class="textpoint">{"".join(labels)}</g></g>'
    )


def _colour(colour: str | float, layout: dict[str, Any]) -> str:
    """Entropies stand on the figure's colour axis; below it lies what the draft was not asked."""
    if isinstance(colour, str):
        return colour
    ceiling = layout["coloraxis"]["cmax"]
    return UNKNOWN if colour < 0 else str(sample_colorscale(COLOURSCALE, min(colour / ceiling, 1.0))[0])
