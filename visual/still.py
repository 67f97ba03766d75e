"""A step's figure as plain SVG, for before Plotly is there: the same places, colours and labels, drawn by no script.

It has the room's width whatever that is, as Plotly's has: places across are percentages, and only edges are stretched.
"""

from __future__ import annotations

import html
from typing import Any

from visual.tree_figure import Drawing

ROW_PIXELS, TALLEST = 36, 760  # as in step.js
PADDING = 4  # the figure's margin
HALO = 14
SYMBOLS = {  # outlines for a radius of 1
    "circle": "M1,0A1,1 0 1,1 0,-1A1,1 0 0,1 1,0Z",
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
    edges = "".join(_edges(shape) for shape in layout["shapes"])
    nodes = ""
    for trace in figure["data"]:
        if trace["name"] == "marked" or not trace["visible"]:
            continue
        across = [round(100 * (x - left) / (right - left), 3) for x in trace["x"]]
        down = [round(height * (top - y) / (top - bottom), 2) for y in trace["y"]]
        nodes += _nodes(trace, across, down, chosen)
    return (
        f'<svg class="still" width="100%" height="{height:g}" overflow="visible" role="img" aria-label="Draft tree">'
        f'<svg width="100%" height="{height:g}" viewBox="{left} {-top} {right - left} {top - bottom:g}"'
        f' preserveAspectRatio="none" overflow="visible"><g transform="scale(1,-1)">{edges}</g></svg>{nodes}</svg>'
    )


def _edges(shape: dict[str, Any]) -> str:
    style = shape["line"]
    dash = f' stroke-dasharray="{style["dash"]}"' if "dash" in style else ""
    return (
        f'<path d="{shape["path"]}" fill="none" stroke="{style["color"]}" stroke-width="{style["width"]}"{dash}'
        ' vector-effect="non-scaling-stroke"/>'
    )


def _nodes(trace: dict[str, Any], across: list[float], down: list[float], chosen: int) -> str:
    marker, font = trace["marker"], trace["textfont"]
    line, radius, letters = marker["line"], marker["size"] / 2, font["size"]
    fills = [marker["color"]] * len(across) if isinstance(marker["color"], str) else marker["color"]
    symbol = SYMBOLS[marker["symbol"]]
    marks, labels = "", ""
    for node, text, fill, x, y in zip(trace["customdata"], trace["text"], fills, across, down, strict=True):
        halo = f'<circle class="chosen" r="{HALO}"/>' if node == chosen else ""
        marks += (
            f'<svg x="{x}%" y="{y}" overflow="visible">{halo}<path d="{symbol}" fill="{fill}" stroke="{line["color"]}"'
            f' stroke-width="{line["width"]}" transform="scale({radius:g})" vector-effect="non-scaling-stroke"/></svg>'
        )
        above = round(y - radius / 0.8 - 1 - letters / 4, 2)  # where Plotly puts "top center"
        # A label is HTML already; read and written once more, so that nothing rests on that.
        labels += (
            f'<text x="{x}%" y="{above}" text-anchor="middle" font-size="{letters}"'
            f' font-weight="{font.get("weight", "normal")}">{html.escape(html.unescape(text))}</text>'
        )
    return f'<g class="trace{trace["uid"]}"><g class="points">{marks}</g><g class="textpoint">{labels}</g></g>'
