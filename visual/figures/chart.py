"""An empty figure with named axes, legible on light and dark."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from visual.figures import theme

LEGEND: dict[str, Any] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def panel(across: str, up: str | None) -> go.Figure:
    """Make an empty figure with named axes, legible on light and dark."""
    figure = go.Figure()
    figure.update_layout(
        template="none", showlegend=False, autosize=True, height=300, bargap=0.18, dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hoverlabel={"namelength": -1},
        font={"size": 13, "color": theme.QUIET, "family": "system-ui, sans-serif"},
        margin={"l": 52, "r": 12, "t": 12, "b": 46}, xaxis_title=across, yaxis_title=up,
    )  # fmt: skip
    figure.update_xaxes(fixedrange=True, zeroline=False, showgrid=False, linecolor=theme.QUIET)
    figure.update_yaxes(fixedrange=True, zeroline=False, gridcolor="rgba(139,144,150,0.25)", rangemode="tozero")
    return figure
