"""Figure of a distillation: KL and τ against steps, from its report."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specllava.distill.config import Report
from visual.figures.charts import ACCEPTED, QUIET, REJECTED

SMOOTH = 25  # points that the line of the training's own KL has at most


def figure(report: Report, title: str | None = None) -> go.Figure:
    """Draw KL (left axis, logarithmic) and τ (right axis) by step; the draft that is kept has a ring."""
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
        title={"text": title or f"{report.draft} learns from {report.target}", "font": {"size": 15}},
        xaxis_title="steps",
        margin={"l": 70, "r": 70, "t": 60, "b": 50},
        legend={"orientation": "h", "y": -0.16},
    )
    return drawn


def write_page(report: Report, file: Path) -> None:
    """Write the figure as a page that needs no network."""
    beside = file.with_name(file.name + ".writing")
    figure(report).write_html(beside, include_plotlyjs=True)
    beside.replace(file)


def _smooth(report: Report) -> list[tuple[float, float]]:
    """Return mean step and mean KL of at most about ``SMOOTH`` stretches of the training."""
    points = [(point["step"], point["kl"]) for point in report.curve if "kl" in point]
    size = max(1, len(points) // SMOOTH)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(s for s, _ in part) / len(part), sum(k for _, k in part) / len(part)) for part in stretches]
