"""Charts of a run and of a comparison, each with its answer in words, and of a distillation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specllava.distill.config import Report
from specllava.files import write_whole
from specllava.metrics import JudgedNode, Outcome, judged_nodes, wilson
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
        margin={"l": 66, "r": 12, "t": 12, "b": 46}, xaxis_title=across, yaxis_title=up,
    )  # fmt: skip
    figure.update_xaxes(fixedrange=True, zeroline=False, showgrid=False, linecolor=QUIET)
    figure.update_yaxes(fixedrange=True, zeroline=False, gridcolor="rgba(139,144,150,0.25)", rangemode="tozero")
    return figure


UNSURE = 0.3  # nats, above which a draft is called unsure
EDGES = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5, math.inf)  # nats: bins of doubt


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


    def bins(self) -> list[tuple[float, int, int, int]]:
        """Return mean doubt, guesses, first choices that were right, and any right, of each bin that has some."""
        rows = list[tuple[float, int, int, int]]()
        for low, high in pairwise(EDGES):
            own = [(nats, kind) for nats, kind in self.points if low <= max(0.0, nats) < high]
            first = sum(kind == "favourite" for _, kind in own)
            missed = sum(kind == "missed" for _, kind in own)
            if own:
                rows.append((fmean(nats for nats, _ in own), len(own), first, len(own) - missed))
        return rows


def doubt_chart(doubts: Doubts) -> go.Figure:
    """Chart how often guesses were right by the draft's doubt, in bins, with 95 % Wilson intervals."""
    figure, bins = panel("doubt of the draft, nats", "share that was right"), doubts.bins()
    nats, counts = [row[0] for row in bins], [row[1] for row in bins]
    for name, colour, dash, right in (
        ("any branch", SAVED, "dot", [row[3] for row in bins]),
        ("first choice", ACCEPTED, "solid", [row[2] for row in bins]),
    ):  # fmt: skip
        shares = [one / of for one, of in zip(right, counts, strict=True)]
        ends = [wilson(one, of) for one, of in zip(right, counts, strict=True)]
        arms = {
            "type": "data", "symmetric": False,
            "array": [high - share for share, (_, high) in zip(shares, ends, strict=True)],
            "arrayminus": [share - low for share, (low, _) in zip(shares, ends, strict=True)],
        }  # fmt: skip
        figure.add_scatter(
            x=nats, y=shares, error_y=arms, name=name, mode="lines+markers", line={"color": colour, "dash": dash},
            text=[f"{one} of {of}" for one, of in zip(right, counts, strict=True)], hoverinfo="text+name",
        )  # fmt: skip
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    figure.add_vline(UNSURE, line={"dash": "dot", "color": QUIET})
    return figure.update_layout(height=260, showlegend=True, legend=LEGEND)


def doubt_words(doubts: Doubts) -> str:
    """Say how often the first choice was right, where the draft was sure and where it was in doubt."""
    torn = sum(nats > UNSURE for nats, _ in doubts.points)
    sure = len(doubts.points) - torn
    return (
        f"Sure (up to {UNSURE:g} nats): first choice right {doubts.count('favourite', False)} of {sure} times. In"
        f" doubt: {doubts.count('favourite', True)} of {torn}; {doubts.count('saved', True)} more by another branch."
        " Bars: 95 % Wilson intervals."
    )


def speed_chart(rows: Sequence[tuple[str, float, float, float]], knob: str = "") -> go.Figure:
    """Chart speed-ups with their 95 % intervals: a line each, or over the values of an option.

    Args:
        rows: name, value, low and high of each; NaN where there is none.
        knob: the option whose values are the names.
    """
    names, values = [name for name, *_ in rows], [value for _, value, _, _ in rows]
    known = [(value, low, high) if high > low else (value, value, value) for _, value, low, high in rows]
    arms = {
        "type": "data", "symmetric": False, "array": [high - value for value, _, high in known],
        "arrayminus": [value - low for value, low, _ in known],
    }  # fmt: skip
    shared: dict[str, Any] = {"marker": {"color": ACCEPTED, "size": 11}}
    axis = "times as fast as alone"
    if knob:
        figure = panel(knob, axis)
        figure.add_scatter(x=list(map(float, names)), y=values, error_y=arms, mode="lines+markers", **shared)
        figure.add_hline(1, line={"dash": "dot", "color": QUIET})
        return figure
    figure = panel(axis, None)
    figure.add_scatter(x=values, y=names, error_x=arms, mode="markers", **shared)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False, rangemode="normal")
    figure.add_vline(1, line={"dash": "dot", "color": QUIET})
    return figure.update_layout(height=90 + 34 * max(1, len(rows)), margin={"l": 130})


# --- a distillation -----------------------------------------------------------------------------

SMOOTH = 25  # points that the line of the training's own KL has at most


def write_page(report: Report, file: Path) -> None:
    """Draw KL (left axis, logarithmic) and τ (right axis) by step, as a page that needs no network.

    The draft that is kept has a ring.
    """
    drawn = make_subplots(specs=[[{"secondary_y": True}]])
    steps = [check.step for check in report.checks]
    trained = _smooth(report)
    if trained:
        drawn.add_scatter(
            x=[step for step, _ in trained], y=[kl for _, kl in trained], name="KL while learning", mode="lines",
            line={"color": QUIET, "dash": "dot"},
        )  # fmt: skip
    drawn.add_scatter(
        x=steps, y=[check.kl for check in report.checks], name="KL on the target's answers", mode="lines+markers",
        line={"color": REJECTED}, marker={"symbol": "circle", "size": 8},
    )  # fmt: skip
    drawn.add_scatter(
        x=steps, y=[check.tau for check in report.checks], name="τ", mode="lines+markers",
        line={"color": ACCEPTED, "dash": "dash"}, marker={"symbol": "diamond", "size": 9},
        secondary_y=True,
    )  # fmt: skip
    best = report.best
    drawn.add_scatter(
        x=[best.step], y=[best.tau], name="kept", mode="markers", secondary_y=True,
        marker={"symbol": "circle-open", "size": 18, "color": ACCEPTED, "line": {"width": 2}},
    )  # fmt: skip
    drawn.update_yaxes(title_text="KL(target ‖ draft), nats per token", type="log", secondary_y=False)
    drawn.update_yaxes(title_text="τ, tokens per target pass", showgrid=False, secondary_y=True)
    drawn.update_layout(
        template="plotly_white",
        title={"text": f"{report.draft} learns from {report.target}", "font": {"size": 15}},
        xaxis_title="steps",
        margin={"l": 70, "r": 70, "t": 60, "b": 50},
        legend={"orientation": "h", "y": -0.16},
    )
    write_whole(file, drawn.to_html(include_plotlyjs=True))


def _smooth(report: Report) -> list[tuple[float, float]]:
    """Return mean step and mean KL of at most about ``SMOOTH`` stretches of the training."""
    points = [(point["step"], point["kl"]) for point in report.curve if "kl" in point]
    size = max(1, len(points) // SMOOTH)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(s for s, _ in part) / len(part), sum(k for _, k in part) / len(part)) for part in stretches]
