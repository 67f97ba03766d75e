"""Plotly figure of one step's tree: left to right, few traces, legible on light and dark.

Nodes are points of a trace for each verdict; their ids (``customdata``) are those of ``StepLayout``. ``marked`` holds
halos. Edges are shapes, a path for all of one style, named ``edges``, ``branch``, ``next-edge``, ``pruned-stubs`` and
``pruned-edges``; as traces they would take Plotly a quarter longer to draw. ``meta["edges"]`` of the layout lists, for
each shape, the nodes that its pieces (an ``M`` each) lead to. A pruned guess is always a stub at its parent, so that a
node which the draft was unsure after is seen to branch; switched on, it is drawn in full. Player, stylesheet and tests
refer to these names.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from specllava.trace import DecodeTrace, StepTrace
from visual.figures import theme
from visual.figures.step_layout import StepLayout
from visual.figures.charts import Verdict

SLOTS = 4.0  # rows that the figure has at the least
MARGIN = (30, 42)  # pixels left of the root and right of the last column
PRUNED_CHARACTERS = 6
STUB = 21  # pixels that a stub is long, from the middle of its node
STUB_ANGLES = (24, 80)  # degrees below the horizontal: labels stand above, the favourite child level
ROW_PIXELS = 36  # of a slot at the natural scale
EMPTY = " "  # a label of no characters at all is taken out of the page, and no later step's label replaces it
Drawing = dict[str, Any]
WIDTHS = ((0.1, 1.0), (0.35, 2.0), (0.7, 3.2), (1.01, 4.4))  # draft probability below -> width in pixels


MARKERS: dict[Verdict, dict[str, object]] = {
    "pruned": {"symbol": "circle-open", "size": 6, "line": {"color": theme.QUIET, "width": 1.2}},
    "unreached": {"symbol": "circle", "size": 11, "line": {"color": theme.QUIET, "width": 1.2}},
    "rejected": {"symbol": "square-x", "size": 14, "line": {"color": theme.REJECTED, "width": 1.7}},
    "accepted": {"symbol": "circle", "size": 15, "line": {"color": theme.ACCEPTED, "width": 2.4}},
    "root": {"symbol": "diamond", "size": 16, "line": {"color": theme.TARGET, "width": 2.6}},
    "next": {"symbol": "diamond", "size": 15, "line": {"color": theme.TARGET, "width": 1.0}},
}
FONTS: dict[Verdict, dict[str, object]] = {
    "pruned": {"size": 10}, "unreached": {"size": 11}, "rejected": {"size": 12},
    "accepted": {"size": 12, "weight": "bold"}, "root": {"size": 12, "weight": "bold"},
    "next": {"size": 12, "weight": "bold"},
}  # fmt: skip


def tree_figure(trace: DecodeTrace, step: StepTrace) -> go.Figure:
    """Draw one step; ranges and colours depend on the run's configuration, not on the step."""
    return go.Figure(tree_drawing(StepLayout(trace, step))).update_layout(template="none")


def tree_drawing(layout: StepLayout) -> Drawing:
    """Draw the same as plain data, ``{"data", "layout"}``: Plotly's own objects take three times as long to make."""
    marker = {"color": "rgba(240,180,0,0.42)", "opacity": 1, "line": {"width": 0}}
    marked = {
        "type": "scatter", "name": "marked", "uid": "marked", "x": [None], "y": [None], "mode": "markers",
        "hoverinfo": "skip", "marker": marker,
    }  # fmt: skip
    traces = [_nodes(layout, verdict, nodes) for verdict, nodes in _groups(layout)]
    return {"data": [marked, *traces], "layout": _layout(layout)}


def _groups(layout: StepLayout) -> list[tuple[Verdict, list[int]]]:
    """Group nodes by trace, in the order of drawing. The root, once a bonus token, is as green as the next one."""
    groups: dict[Verdict, list[int]] = {verdict: [] for verdict in MARKERS}
    for node, verdict in enumerate(layout.verdicts):
        if node not in layout.hidden:
            groups[verdict].append(node)
    return [(verdict, nodes) for verdict, nodes in groups.items() if nodes]


def rows_with_pruned(layout: StepLayout) -> dict[str, object]:
    """Return the changes of the figure when pruned guesses are switched on: ``y`` by trace uid, edges, rows."""
    heights = layout.heights_with_pruned
    moved = {verdict: [heights[node] for node in nodes] for verdict, nodes in _groups(layout)}
    shapes, ends = _edges(layout, heights, stubs=False)
    return {"y": moved, "shapes": shapes, "edges": ends, **_extent(heights)}


def _layout(layout: StepLayout) -> dict[str, Any]:
    hidden = {"visible": False, "zeroline": False, "showgrid": False}
    extent = _extent(layout.heights)
    right = layout.columns[-1] + MARGIN[1]
    shapes, ends = _edges(layout, layout.heights, stubs=True)
    return {
        "showlegend": False, "hovermode": "closest", "dragmode": False, "autosize": True,
        "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "meta": {
            "rows": extent["rows"], "width": right + MARGIN[0], "edges": ends,
            "checked": _describe_pass(layout.step.tree.drafted),
        },  # what the page makes room for
        "font": {"size": 12, "color": theme.QUIET, "family": "system-ui, sans-serif"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.QUIET, "activecolor": theme.ACCEPTED},
        "xaxis": {**hidden, "range": [-MARGIN[0], right]}, "yaxis": {**hidden, "range": extent["range"]},
        "shapes": shapes,
    }  # fmt: skip


def _extent(heights: Sequence[int]) -> dict[str, object]:
    """Return the rows to make room for and the range of the axis, labels on top included."""
    rows = max(SLOTS, max(heights) - min(heights) + 2)
    middle = (max(heights) + min(heights)) / 2
    return {"rows": round(rows, 1), "range": [round(middle - rows / 2, 2), round(middle + rows / 2 + 0.3, 2)]}


def _edges(layout: StepLayout, heights: Sequence[int], stubs: bool) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Make the edges by style, in the order of drawing, and list the nodes that each style's edges lead to.

    Args:
        stubs: pruned guesses are stubs; otherwise they are drawn at their ``heights``.
    """
    branch = layout.step.emitted_nodes
    taken = set(branch)
    pruned = [node for node in layout.pruned if node not in layout.hidden]
    drafted = [n for n in range(1, layout.next_node) if n not in taken]
    lines: list[tuple[str, Sequence[int], dict[str, object]]] = []
    floor = 0.0
    for limit, width in WIDTHS:
        chosen = [n for n in drafted if floor <= math.exp(layout.log_probs[n]) < limit]
        lines.append(("edges", chosen, {"color": "rgba(139,144,150,0.55)", "width": width}))
        floor = limit
    if stubs:
        lines.append(("pruned-stubs", pruned, {"color": "rgba(139,144,150,0.9)", "width": 1.4}))
    else:
        lines.append(("pruned-edges", pruned, {"color": "rgba(139,144,150,0.7)", "width": 1, "dash": "1px,3px"}))
    lines.append(("branch", branch, {"color": theme.ACCEPTED, "width": 5}))
    bonus = [] if layout.step.bonus_unused else [layout.next_node]
    lines.append(("next-edge", bonus, {"color": theme.TARGET, "width": 3, "dash": "4px,4px"}))
    lines = [line for line in lines if line[1]]
    pieces = _stubs(layout, heights) if stubs else {}
    shapes = [
        {"type": "path", "name": name, "layer": "below", "line": style,
         "path": " ".join(pieces[n] if n in pieces else _edge(layout, heights, n) for n in nodes)}
        for name, nodes, style in lines
    ]  # fmt: skip
    return shapes, [[*nodes] for _, nodes, _ in lines]


def _stubs(layout: StepLayout, heights: Sequence[int]) -> dict[int, str]:
    """Make a short piece of a path for each pruned guess: those of one parent fan out below it."""
    families: dict[int, list[int]] = {}
    for node in layout.pruned:  # hidden ones too, which nobody asks for
        families.setdefault(layout.parents[node], []).append(node)
    pieces = {}
    low, high = STUB_ANGLES
    for parent, family in families.items():
        x, y = layout.columns[layout.depths[parent]], heights[parent]
        for number, node in enumerate(family):
            angle = math.radians(low + (high - low) * (number + 0.5) / len(family))
            end = (round(x + STUB * math.cos(angle), 1), round(y - STUB * math.sin(angle) / ROW_PIXELS, 3))
            pieces[node] = f"M{x},{y}L{end[0]:g},{end[1]:g}"
    return pieces


def _edge(layout: StepLayout, heights: Sequence[int], node: int) -> str:
    """Make the edge from the parent to ``node`` as a piece of an SVG path, level at both ends."""
    start, end = (layout.columns[depth] for depth in (layout.depths[node] - 1, layout.depths[node]))
    low, high = heights[layout.parents[node]], heights[node]
    if low == high:
        return f"M{start},{low}L{end},{low}"
    middle = round((start + end) / 2)
    return f"M{start},{low}C{middle},{low} {middle},{high} {end},{high}"


def _nodes(layout: StepLayout, verdict: Verdict, nodes: Sequence[int]) -> dict[str, Any]:
    pruned = verdict == "pruned"
    heights = layout.heights_with_pruned if pruned else layout.heights
    labels = [_label(layout, n) for n in nodes]
    return {
        "type": "scatter", "name": verdict, "uid": verdict, "mode": "markers+text" if any(labels) else "markers",
        "hoverinfo": "none", "cliponaxis": False, "visible": not pruned,
        "customdata": list(nodes), "text": [label or EMPTY for label in labels],
        "x": [layout.columns[layout.depths[n]] for n in nodes], "y": [heights[n] for n in nodes],
        "textposition": "top center", "textfont": FONTS[verdict],
        "marker": {**MARKERS[verdict], "opacity": 1, "color": _fill(layout, verdict, nodes)},
    }  # fmt: skip


def _fill(layout: StepLayout, verdict: Verdict, nodes: Sequence[int]) -> str | list[str]:
    fixed = {"next": theme.TARGET, "pruned": theme.QUIET}
    if verdict in fixed:
        return fixed[verdict]
    ceiling = theme.entropy_ceiling(layout.trace.config)
    return [theme.entropy_colour(layout.entropies[n], ceiling) for n in nodes]


def _label(layout: StepLayout, node: int) -> str:
    """Return a node's label, escaped: Plotly reads labels as a kind of HTML."""
    label = layout.labels[node]
    if layout.verdicts[node] == "pruned" and len(label) > PRUNED_CHARACTERS:
        label = label[: PRUNED_CHARACTERS - 1] + "…"
    return html.escape(label)


def _describe_pass(guesses: int) -> str | None:
    """Say what one target pass did; ``None`` where nothing was drafted."""
    if not guesses:
        return None
    return f"one large-model pass checked {'this guess' if guesses == 1 else f'all {guesses} guesses at once'}"
