"""One step's tree as a Plotly figure: left to right, few traces, legible on light and dark.

Node ids of the figure (``customdata``) are those of ``PlacedStep``. Traces are named ``edges``, ``branch``,
``next-edge``, ``pruned-edges``, ``path``, ``selected``, and by verdict: the player and the tests refer to them, and
uids end up as class names in the page's SVG.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from specllava.trace import DecodeTrace, StepTrace
from visual import theme
from visual.placed import PlacedStep
from visual.theme import Verdict, entropy_ceiling

SLOTS = 9.5  # rows that the figure shows at its natural scale; the page makes room for a bushier tree
MARGIN = (30, 42)  # pixels left of the root and right of the last column
PRUNED_CHARACTERS = 6
Drawing = dict[str, Any]
BEND = ((0.0, 0.0), (0.3, 0.1), (0.7, 0.9), (1.0, 1.0))  # how an edge climbs, drawn as a spline
WIDTHS = ((0.1, 1.0), (0.35, 2.0), (0.7, 3.2), (1.01, 4.4))  # draft probability below -> width in pixels
MARKERS: dict[Verdict, dict[str, object]] = {
    "pruned": {"symbol": "circle-open", "size": 6, "line": {"color": theme.QUIET, "width": 1.2}},
    "unreached": {"symbol": "circle", "size": 11, "line": {"color": theme.QUIET, "width": 1.2}},
    "rejected": {"symbol": "square-x", "size": 14, "line": {"color": theme.REJECTED, "width": 1.7}},
    "accepted": {"symbol": "circle", "size": 15, "line": {"color": theme.ACCEPTED, "width": 2.4}},
    "next": {"symbol": "diamond", "size": 15, "line": {"color": theme.TARGET, "width": 1.0}},
}
FONTS: dict[Verdict, dict[str, object]] = {
    "pruned": {"size": 10}, "unreached": {"size": 11}, "rejected": {"size": 12},
    "accepted": {"size": 12, "weight": "bold"}, "next": {"size": 12, "weight": "bold"},
}  # fmt: skip


def tree_figure(trace: DecodeTrace, step: StepTrace) -> go.Figure:
    """The figure of one step; ranges and colours depend on the run's configuration, not on the step."""
    return go.Figure(tree_drawing(PlacedStep(trace, step))).update_layout(template="none")


def tree_drawing(placed: PlacedStep) -> Drawing:
    """The same as plain data, ``{"data", "layout"}``: Plotly's own objects take three times as long to make."""
    traces = _edges(placed)
    for name, size, colour in (("path", 23, "rgba(240,180,0,0.28)"), ("selected", 28, "rgba(240,180,0,0.5)")):
        marker = {"size": size, "color": colour, "opacity": 1, "line": {"width": 0}}
        traces.append({
            "type": "scatter", "name": name, "uid": name, "x": [None], "y": [None], "mode": "markers",
            "hoverinfo": "skip", "marker": marker,
        })  # fmt: skip
    for verdict in MARKERS:
        kinds = {"accepted", "root"} if verdict == "accepted" else {verdict}
        nodes = [n for n, v in enumerate(placed.verdicts) if v in kinds]
        if nodes:
            traces.append(_nodes(placed, verdict, nodes))
    return {"data": traces, "layout": _layout(placed)}


def rows_with_pruned(placed: PlacedStep) -> dict[str, object]:
    """What changes in a step's figure when its pruned guesses are switched on: ``y`` by trace uid, and the rows."""
    heights = placed.heights_with_pruned
    moved: dict[str, Sequence[float | None]] = {
        uid: _climb(placed, heights, nodes) for uid, nodes, _ in _lines(placed)
    }
    for verdict in MARKERS:
        kinds = {"accepted", "root"} if verdict == "accepted" else {verdict}
        rows = [heights[n] for n, v in enumerate(placed.verdicts) if v in kinds]
        if rows:
            moved[verdict] = rows
    return {"y": moved, **_extent(heights)}


def _layout(placed: PlacedStep) -> dict[str, Any]:
    hidden = {"visible": False, "zeroline": False, "showgrid": False}
    extent = _extent(placed.heights)
    right = max(placed.width, placed.columns[-1]) + MARGIN[1]
    return {
        "showlegend": False, "hovermode": "closest", "dragmode": False, "autosize": True,
        "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "meta": {"rows": extent["rows"], "width": right + MARGIN[0]},  # what the page makes room for
        "font": {"size": 12, "color": theme.QUIET, "family": "system-ui, sans-serif"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.QUIET, "activecolor": theme.ACCEPTED},
        "coloraxis": theme.entropy_axis(entropy_ceiling(placed.trace.config)),
        "xaxis": {**hidden, "range": [-MARGIN[0], right]}, "yaxis": {**hidden, "range": extent["range"]},
    }  # fmt: skip


def _extent(heights: Sequence[int]) -> dict[str, object]:
    """Rows to make room for, and the range of the axis, labels on top included."""
    rows = max(SLOTS, max(heights) - min(heights) + 2)
    middle = (max(heights) + min(heights)) / 2
    return {"rows": round(rows, 1), "range": [round(middle - rows / 2, 2), round(middle + rows / 2 + 0.3, 2)]}


def _lines(placed: PlacedStep) -> list[tuple[str, Sequence[int], dict[str, object]]]:
    """``(uid, nodes that the edges lead to, style)``, in the order of drawing."""
    branch = placed.step.verification.accepted
    drafted = [n for n in range(1, placed.next_node) if n not in branch]
    lines: list[tuple[str, Sequence[int], dict[str, object]]] = []
    floor = 0.0
    for place, (limit, width) in enumerate(WIDTHS):
        chosen = [n for n in drafted if floor <= math.exp(placed.log_probs[n]) < limit]
        lines.append((f"edges-{place}", chosen, {"color": "rgba(139,144,150,0.55)", "width": width}))
        floor = limit
    lines.append(("pruned-edges", placed.pruned, {"color": "rgba(139,144,150,0.7)", "width": 1, "dash": "1px,3px"}))
    lines.append(("branch", branch, {"color": theme.ACCEPTED, "width": 5}))
    lines.append(("next-edge", [placed.next_node], {"color": theme.TARGET, "width": 3, "dash": "4px,4px"}))
    return [line for line in lines if line[1]]


def _edges(placed: PlacedStep) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for uid, nodes, style in _lines(placed):
        pruned = uid == "pruned-edges"
        heights = placed.heights_with_pruned if pruned else placed.heights
        # Every trace has a uid of its own: Plotly would hand an unnamed one that of another when their number changes.
        traces.append({
            "type": "scatter", "name": "edges" if uid.startswith("edges") else uid, "uid": uid, "visible": not pruned,
            "x": _stride(placed, nodes), "y": _climb(placed, heights, nodes), "mode": "lines", "hoverinfo": "skip",
            "line": {**style, "shape": "spline"},
        })  # fmt: skip
    return traces


def _stride(placed: PlacedStep, nodes: Iterable[int]) -> list[float | None]:
    xs: list[float | None] = []
    for node in nodes:
        end = placed.columns[placed.depths[node]]
        start = placed.columns[placed.depths[node] - 1]
        xs += [*(round(start + along * (end - start)) for along, _ in _bend(placed, node)), None]
    return xs


def _climb(placed: PlacedStep, heights: Sequence[int], nodes: Iterable[int]) -> list[float | None]:
    ys: list[float | None] = []
    for node in nodes:
        start, end = heights[placed.parents[node]], heights[node]
        ys += [*(round(start + up * (end - start), 1) for _, up in _bend(placed, node)), None]
    return ys


def _bend(placed: PlacedStep, node: int) -> Sequence[tuple[float, float]]:
    """Two points are enough for an edge that is level, whether pruned guesses are drawn or not."""
    rows = (placed.heights_with_pruned,) if node in placed.pruned else (placed.heights, placed.heights_with_pruned)
    level = all(row[node] == row[placed.parents[node]] for row in rows)
    return (BEND[0], BEND[-1]) if level else BEND


def _nodes(placed: PlacedStep, verdict: Verdict, nodes: Sequence[int]) -> dict[str, Any]:
    pruned = verdict == "pruned"
    heights = placed.heights_with_pruned if pruned else placed.heights
    labels = [_label(placed, n) for n in nodes]
    return {
        "type": "scatter", "name": verdict, "uid": verdict, "mode": "markers+text" if any(labels) else "markers",
        "hoverinfo": "none", "cliponaxis": False, "visible": not pruned, "customdata": list(nodes), "text": labels,
        "x": [placed.columns[placed.depths[n]] for n in nodes], "y": [heights[n] for n in nodes],
        "textposition": "top center", "textfont": FONTS[verdict],
        "marker": {**MARKERS[verdict], "opacity": 1, **_fill(placed, verdict, nodes)},
    }  # fmt: skip


def _fill(placed: PlacedStep, verdict: Verdict, nodes: Sequence[int]) -> dict[str, object]:
    if verdict == "next":
        return {"color": theme.TARGET}
    if verdict == "pruned":
        return {"color": theme.QUIET}
    entropies = (placed.step.tree.entropies[n] for n in nodes)
    return {"color": [theme.UNASKED if e is None else round(e, 2) for e in entropies], "coloraxis": "coloraxis"}


def _label(placed: PlacedStep, node: int) -> str:
    """Plotly reads labels as a kind of HTML, so a token's own text is escaped."""
    label = placed.labels[node]
    if placed.verdicts[node] == "pruned" and len(label) > PRUNED_CHARACTERS:
        label = label[: PRUNED_CHARACTERS - 1] + "…"
    return html.escape(label)
