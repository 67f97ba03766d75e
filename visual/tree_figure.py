"""One step's tree as a Plotly figure: left to right, few traces, legible on light and dark.

Node ids of the figure are those of the ``DraftTree``; the target's own next token is one more node,
``len(tree)``. Traces are named ``edges``, ``branch``, ``next-edge``, ``unreached``, ``judged`` and ``selected``: the
player and the tests refer to them, and uids end up as class names in the page's SVG.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import plotly.graph_objects as go

from specllava.trace import DecodeTrace, StepTrace
from visual import theme
from visual.layout import ordered_tree, tidy_heights
from visual.theme import Verdict, entropy_ceiling, entropy_fill, verdicts
from visual.words import token_label

SLOTS = 9.5  # rows that the figure shows at its natural scale; the page makes room for a bushier tree
CROWDED = 22  # rows beyond which never-reached nodes lose their label
LABEL_CHARACTERS = 10
EASE = (0.0, 0.12, 0.25, 0.4, 0.5, 0.6, 0.75, 0.88, 1.0)
WIDTHS = ((0.1, 1.0), (0.35, 2.0), (0.7, 3.2), (1.01, 4.4))  # draft probability below -> width in pixels
SYMBOLS: dict[Verdict, str] = {"root": "circle", "accepted": "circle", "rejected": "square-x", "next": "diamond"}
OUTLINES: dict[Verdict, str] = {
    "root": theme.ACCEPTED,
    "accepted": theme.ACCEPTED,
    "rejected": theme.REJECTED,
    "next": theme.TARGET,
}
SIZES: dict[Verdict, int] = {"root": 15, "accepted": 15, "rejected": 14, "next": 15}
STROKES: dict[Verdict, float] = {"root": 2.4, "accepted": 2.4, "rejected": 1.7, "next": 1.0}


@dataclass(frozen=True)
class PlacedStep:
    """A step with the place of every node, the target's next token included as the last one."""

    trace: DecodeTrace
    step: StepTrace

    @property
    def next_node(self) -> int:
        return len(self.step.tree)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        return (*self.step.tree.parents, self.step.verification.path[-1])

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths = self.step.tree.depths()
        return (*depths, depths[self.parents[-1]] + 1)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        return (*self.step.tree.tokens, self.step.verification.next_token)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (*verdicts(self.step), "next")

    @cached_property
    def heights(self) -> tuple[float, ...]:
        """The emitted branch is the spine: it runs straight through the picture."""
        emitted = {*self.step.verification.path, self.next_node}
        likely = (*self.step.tree.log_probs, 0.0)
        families: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            families[parent].append(node)
        ordered = [sorted(family, key=lambda n: (n not in emitted, -likely[n])) for family in families]
        return tidy_heights(ordered_tree(ordered))


def tree_figure(trace: DecodeTrace, step: StepTrace) -> go.Figure:
    """The figure of one step; axis and colour ranges depend on the run's configuration, not on the step."""
    placed = PlacedStep(trace, step)
    rows = max(placed.heights) - min(placed.heights) + 1
    figure = go.Figure(layout=_layout(placed, rows))
    _add_edges(figure, placed)
    figure.add_scatter(
        name="selected", uid="selected", x=[None], y=[None], mode="markers", hoverinfo="skip",
        marker={"size": 28, "color": "rgba(240,180,0,0.5)", "opacity": 1, "line": {"width": 0}},
    )  # fmt: skip
    _add_nodes(figure, placed, "unreached", [n for n, v in enumerate(placed.verdicts) if v == "unreached"], rows)
    _add_nodes(figure, placed, "judged", [n for n, v in enumerate(placed.verdicts) if v != "unreached"], rows)
    return figure


def _layout(placed: PlacedStep, rows: float) -> go.Layout:
    middle = (max(placed.heights) + min(placed.heights)) / 2
    reach = max(SLOTS, rows + 1) / 2
    hidden = {"visible": False, "fixedrange": True, "zeroline": False, "showgrid": False}
    return go.Layout(
        template="none", showlegend=False, hovermode="closest", dragmode=False, autosize=True,
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        meta={"rows": round(max(SLOTS, rows + 1), 1)},  # what the page makes room for
        font={"size": 12, "color": theme.QUIET, "family": "system-ui, sans-serif"},
        xaxis={**hidden, "range": [-0.5, placed.trace.config.depth + 1.6]},
        yaxis={**hidden, "range": [round(middle - reach, 2), round(middle + reach + 0.3, 2)]},
    )  # fmt: skip


def _add_edges(figure: go.Figure, placed: PlacedStep) -> None:
    branch = placed.step.verification.accepted
    drafted = [n for n in range(1, placed.next_node) if n not in branch]
    floor = 0.0
    for limit, width in WIDTHS:
        chosen = [n for n in drafted if floor <= math.exp(placed.step.tree.log_probs[n]) < limit]
        if chosen:
            _add_line(figure, placed, "edges", chosen, {"color": "rgba(139,144,150,0.55)", "width": width})
        floor = limit
    if branch:
        _add_line(figure, placed, "branch", branch, {"color": theme.ACCEPTED, "width": 5})
    line = {"color": theme.TARGET, "width": 3, "dash": "4px,4px"}
    _add_line(figure, placed, "next-edge", [placed.next_node], line)


def _add_line(figure: go.Figure, placed: PlacedStep, name: str, nodes: Iterable[int], line: dict[str, object]) -> None:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for node in nodes:
        start, end = placed.heights[placed.parents[node]], placed.heights[node]
        for t in EASE if start != end else (0.0, 1.0):
            xs.append(round(placed.depths[node] - 1 + t, 2))
            ys.append(round(start + (end - start) * t * t * (3 - 2 * t), 3))
        xs.append(None)
        ys.append(None)
    # Every trace has a uid of its own: Plotly would hand an unnamed trace the uid of another when their number changes.
    figure.add_scatter(
        name=name, uid=f"{name}-{len(figure.data)}", x=xs, y=ys, mode="lines", line=line, hoverinfo="skip"
    )


def _add_nodes(figure: go.Figure, placed: PlacedStep, name: str, nodes: Sequence[int], rows: float) -> None:
    kinds = [placed.verdicts[n] for n in nodes]
    quiet = name == "unreached"
    labels = [] if quiet and rows > CROWDED else [_label(placed, n) for n in nodes]
    marker: dict[str, object] = {"color": [_fill(placed, n) for n in nodes], "opacity": 1}
    if quiet:
        marker |= {"symbol": "circle", "size": 11, "line": {"color": theme.QUIET, "width": 1.2}}
    else:
        outlines, strokes = [OUTLINES[k] for k in kinds], [STROKES[k] for k in kinds]
        marker |= {"symbol": [SYMBOLS[k] for k in kinds], "size": [SIZES[k] for k in kinds]}
        marker |= {"line": {"color": outlines, "width": strokes}}
    figure.add_scatter(
        name=name, uid=name, mode="markers+text" if labels else "markers", hoverinfo="none", cliponaxis=False,
        x=[placed.depths[n] for n in nodes], y=[round(placed.heights[n], 3) for n in nodes], customdata=list(nodes),
        text=labels, textposition="top center", textfont={"size": 11 if quiet else 12}, marker=marker,
    )  # fmt: skip


def _fill(placed: PlacedStep, node: int) -> str:
    if node == placed.next_node:
        return theme.TARGET
    return entropy_fill(placed.step.tree.entropies[node], entropy_ceiling(placed.trace.config))


def _label(placed: PlacedStep, node: int) -> str:
    """Plotly reads labels as a kind of HTML, so a token's own text is escaped."""
    text = html.escape(token_label(placed.trace, placed.tokens[node], LABEL_CHARACTERS))
    return text if placed.verdicts[node] in ("rejected", "unreached") else f"<b>{text}</b>"
