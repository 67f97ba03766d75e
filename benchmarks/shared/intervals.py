"""Figure of measured rates with their intervals: panels side by side that share their horizontal axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from visual.figures import ACCEPTED, LEGEND, QUIET, REJECTED, SAVED, TARGET, panel

Rate = Mapping[str, float]  # ``value``, ``low``, ``high``
LOOKS: Final = (  # colour, symbol, dash: no meaning hangs on colour alone
    (ACCEPTED, "circle", "solid"), (REJECTED, "square", "dash"), (TARGET, "diamond", "dot"),
    (SAVED, "triangle-up", "dashdot"), (QUIET, "x", "longdash"),
)  # fmt: skip
PANEL_WIDTH, HEIGHT = 310, 330
APART: Final = 0.09  # between two series at one place, in places


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure.

    Args:
        title: what is measured, with its unit.
        series: of each name a rate for every place across; ``None`` where there is none.
    """

    title: str
    series: Mapping[str, Sequence[Rate | None]]


def interval_figure(
    panels: Sequence[Panel], places: Sequence[str], across: str, joined: bool = True
) -> go.Figure:
    """Draw every panel: a point for each rate, and its 95 % interval.

    Args:
        places: names along the horizontal axis, from left to right.
        joined: whether lines go from place to place, as where these are in an order.
    """
    figure = make_subplots(cols=len(panels), subplot_titles=[one.title for one in panels], horizontal_spacing=0.07)
    names = list(dict.fromkeys(name for one in panels for name in one.series))
    looks = dict(zip(names, LOOKS, strict=False))
    shown = set[str]()
    for column, one in enumerate(panels, 1):
        for name, rates in one.series.items():
            offset = (names.index(name) - (len(names) - 1) / 2) * APART
            there = [(place + offset, rate) for place, rate in enumerate(rates) if rate is not None]
            colour, symbol, dash = looks[name]
            figure.add_scatter(
                x=[place for place, _ in there], y=[rate["value"] for _, rate in there], name=name, legendgroup=name,
                mode="lines+markers" if joined else "markers", line={"color": colour, "dash": dash, "width": 1.5},
                marker={"symbol": symbol, "size": 8, "color": colour}, showlegend=name not in shown,
                error_y={
                    "array": [rate["high"] - rate["value"] for _, rate in there],
                    "arrayminus": [rate["value"] - rate["low"] for _, rate in there],
                    "color": colour, "thickness": 1.5, "width": 4,
                },
                row=1, col=column,
            )  # fmt: skip
            shown.add(name)
    style = panel("", None).layout
    figure.update_layout(
        template="none", paper_bgcolor=style.paper_bgcolor, plot_bgcolor=style.plot_bgcolor, font=style.font,
        width=max(2, len(panels)) * PANEL_WIDTH, height=HEIGHT, margin={"l": 44, "r": 12, "t": 74, "b": 50},
        showlegend=len(names) > 1, legend=LEGEND | {"y": 1.12},
    )  # fmt: skip
    figure.update_annotations(font={"size": 13, "color": QUIET})
    ticks = {"tickvals": list(range(len(places))), "ticktext": list(places), "range": [-0.5, len(places) - 0.5]}
    figure.update_xaxes(title_text=across, linecolor=QUIET, showgrid=False, zeroline=False, **ticks)
    figure.update_yaxes(gridcolor=style.yaxis.gridcolor, zeroline=False, rangemode="tozero")
    return figure
