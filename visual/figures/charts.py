"""Charts of a run and of a comparison, for the tab Measure. Each answers one question in words as well."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from specllava.metrics import JudgedNode, Outcome, judged_nodes
from specllava.trace import DecodeTrace
from visual.player.labels import counted

ACCEPTED: Final = "#0072B2"
REJECTED: Final = "#D55E00"
TARGET: Final = "#009E73"
SAVED: Final = "#CC79A7"
QUIET: Final = "#8b9096"  # legible on light and dark alike


LEGEND: dict[str, Any] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def panel(across: str, up: str | None) -> go.Figure:
    """Make an empty figure with named axes, legible on light and dark."""
    figure = go.Figure()
    figure.update_layout(
        template="none", showlegend=False, autosize=True, height=300, bargap=0.18, dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hoverlabel={"namelength": -1},
        font={"size": 13, "color": QUIET, "family": "system-ui, sans-serif"},
        margin={"l": 52, "r": 12, "t": 12, "b": 46}, xaxis_title=across, yaxis_title=up,
    )  # fmt: skip
    figure.update_xaxes(fixedrange=True, zeroline=False, showgrid=False, linecolor=QUIET)
    figure.update_yaxes(fixedrange=True, zeroline=False, gridcolor="rgba(139,144,150,0.25)", rangemode="tozero")
    return figure


UNSURE = 0.3  # nats, above which a draft is called unsure
ROWS: dict[Outcome, tuple[str, str, str]] = {  # what the row says, colour, marker
    "favourite": ("first choice right", ACCEPTED, "circle"),
    "saved": ("another branch right", ACCEPTED, "circle-open"),
    "missed": ("none right", REJECTED, "square-x-open"),
}


def reach_chart(trace: DecodeTrace) -> go.Figure:
    """Chart how far guesses went: steps that guessed so far ahead, and those where that guess was accepted."""
    deepest = [max(step.tree.depths(), default=0) for step in trace.steps]
    accepted = [len(step.emitted_nodes) for step in trace.steps]
    ahead = list(range(1, max(deepest, default=0) + 1))
    figure = panel("guesses ahead", "steps")
    figure.add_bar(
        x=ahead, y=[sum(depth >= reach for depth in deepest) for reach in ahead], name="guessed",
        marker={"color": "rgba(0,0,0,0)", "line": {"color": QUIET, "width": 1.5}},
    )  # fmt: skip
    figure.add_bar(
        x=ahead, y=[sum(length >= reach for length in accepted) for reach in ahead], name="accepted",
        marker={"color": ACCEPTED},
    )  # fmt: skip
    return figure.update_layout(barmode="overlay", height=260, xaxis_dtick=1)


def reach_words(trace: DecodeTrace) -> str:
    """Say how far the guesses of a run went."""
    drafted = sum(step.tree.drafted for step in trace.steps)
    accepted = sum(len(step.emitted_nodes) for step in trace.steps)
    steps = counted(len(trace.steps), "step")
    legend = "Outlined: guessed so far ahead. Blue: accepted there."
    return f"{steps}, {counted(drafted, 'guess')}, {accepted} accepted. {legend}"


@dataclass(frozen=True, slots=True)
class Doubts:
    """Doubt of the draft and what came of it, at every judged node of one or more runs."""

    points: tuple[tuple[float, Outcome], ...]

    @classmethod
    def of(cls, traces: Sequence[DecodeTrace]) -> Doubts:
        judged: list[JudgedNode] = [one for trace in traces for step in trace.steps for one in judged_nodes(step)]
        return cls(tuple((one.entropy, one.outcome) for one in judged if one.entropy is not None))

    def count(self, outcome: Outcome, unsure: bool) -> int:
        return sum(kind == outcome and (nats > UNSURE) == unsure for nats, kind in self.points)

    def total(self, unsure: bool) -> int:
        return sum((nats > UNSURE) == unsure for nats, _ in self.points)


def doubt_chart(doubts: Doubts) -> go.Figure:
    """Chart doubt against what came of the guesses; points of a row are spread so that all are seen."""
    spread = random.Random(7)
    figure = panel("doubt of the small model, nats", None)
    for row, (outcome, (name, colour, symbol)) in enumerate(ROWS.items()):
        nats = [value for value, kind in doubts.points if kind == outcome]
        figure.add_scatter(
            x=nats, y=[-row + spread.uniform(-0.28, 0.28) for _ in nats], mode="markers", name=name,
            marker={"color": colour, "symbol": symbol, "size": 9, "opacity": 0.6}, hovertemplate="%{x:.2f} nats",
        )  # fmt: skip
    names = [name for name, _, _ in ROWS.values()]
    figure.update_yaxes(tickvals=[0, -1, -2], ticktext=names, rangemode="normal", range=[-2.6, 0.6], showgrid=False)
    figure.add_vline(UNSURE, line={"dash": "dot", "color": QUIET})
    return figure.update_layout(height=260, margin={"l": 150})


def doubt_words(doubts: Doubts) -> str:
    """Say how often the first choice was right, where the draft was sure and where it was in doubt."""
    sure, torn = doubts.total(False), doubts.total(True)
    return (
        f"Sure (up to {UNSURE:g} nats): first choice right {doubts.count('favourite', False)} of {sure} times. In"
        f" doubt: {doubts.count('favourite', True)} of {torn}; {doubts.count('saved', True)} more by another branch."
    )


def speed_chart(rows: Sequence[tuple[str, float, float, float]]) -> go.Figure:
    """Chart speed-ups with their 95 % intervals.

    Args:
        rows: name, value, low and high of each; NaN where there is none.
    """
    figure = panel("times as fast as the large model alone", None)
    names = [name for name, *_ in rows]
    for name, value, low, high in rows:
        arms = (
            None
            if math.isnan(low)
            else {"type": "data", "symmetric": False, "array": [high - value], "arrayminus": [value - low]}
        )
        figure.add_scatter(
            x=[value], y=[name], mode="markers", marker={"color": ACCEPTED, "size": 11}, error_x=arms, name=name
        )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False, rangemode="normal")
    figure.add_vline(1, line={"dash": "dot", "color": QUIET})
    return figure.update_layout(height=90 + 34 * max(1, len(rows)), margin={"l": 190})
