"""A chart: a question, its answer in words, and the figures and table that show it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from visual.figures import theme

LEGEND: dict[str, Any] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


@dataclass(frozen=True, slots=True)
class Chart:
    """A question about a run, with its answer in words, figures and a table."""

    question: str
    answer: str
    figures: tuple[go.Figure, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_json(self) -> dict[str, object]:
        """Return the chart as plain data for ``charts.js``."""
        figures = [figure.to_plotly_json() for figure in self.figures]
        return {"question": self.question, "answer": self.answer, "figures": figures, "columns": self.columns,
                "rows": self.rows}  # fmt: skip


def panel(across: str, up: str | None) -> go.Figure:
    """Make an empty figure with named axes, legible on light and dark."""
    figure = go.Figure()
    figure.update_layout(
        template="none", showlegend=False, autosize=True, height=300, bargap=0.18, dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hoverlabel={"namelength": -1},
        font={"size": 12, "color": theme.QUIET, "family": "system-ui, sans-serif"},
        margin={"l": 52, "r": 12, "t": 12, "b": 46}, xaxis_title=across, yaxis_title=up,
    )  # fmt: skip
    figure.update_xaxes(fixedrange=True, zeroline=False, showgrid=False, linecolor=theme.QUIET)
    figure.update_yaxes(fixedrange=True, zeroline=False, gridcolor="rgba(139,144,150,0.25)", rangemode="tozero")
    return figure


def finite(value: float) -> float | None:
    """Round a value for a figure; ``None``, which a figure leaves out, if there is none."""
    return None if math.isnan(value) else round(value, 3)
