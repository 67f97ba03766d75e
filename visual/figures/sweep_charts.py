"""Charts of one answer at several settings: rules side by side, and the values of one setting."""

from __future__ import annotations

import math
from typing import Final

import plotly.graph_objects as go

from specllava.core.growth.rule import RuleInfo
from specllava.core.growth.rules import RULE_INFOS
from specllava.findings.sweep import Point, Sweep
from visual.figures import theme
from visual.figures.chart import LEGEND, Chart, finite, panel

COUNTED = "Speed-ups are counted passes at the costs measured here, so no other work tells in them; the clock's: table."
ONE_RUN = "Times are of one run each: on a machine that does other things too, trust the tokens per target pass more."
LABEL_PLACES = ("middle left", "middle left", "top center", "bottom center", "middle right", "middle right")  # by τ
UNITS: Final = {"entropy_threshold": " nats", "max_branches": " branches", "depth": " levels", "nodes": " nodes"}
POINT_COLUMNS: Final = (
    "Tokens per target pass (τ)",
    "Speed-up, counted",
    "By the clock",
    "Drafted",
    "Accepted",
    "Target passes",
    "Same tokens",
)


def rules_chart(found: Sweep) -> Chart:
    """Chart every rule as a point: tokens per target pass against speed-up."""
    figure = panel("tokens per target pass (τ)", "times as fast as the target alone")
    ordered = sorted(found.points, key=lambda point: point.summary.tau)
    places = {
        point.value: LABEL_PLACES[place * len(LABEL_PLACES) // len(ordered)] for place, point in enumerate(ordered)
    }
    for point in found.points:
        info, current = RULE_INFOS[str(point.value)], point.value == found.current
        _add_point(figure, point, info, current, places[point.value])
    if found.alone is not None:
        figure.add_scatter(
            x=[1], y=[1], mode="markers+text", name="target alone", text=["target alone"], textposition="bottom center",
            marker={"symbol": "line-ew", "size": 15, "line": {"width": 3, "color": theme.QUIET}},
        )  # fmt: skip
    figure.update_layout(height=400, hovermode="closest")
    figure.update_xaxes(range=[0, 1.15 * max((point.summary.tau for point in found.points), default=1.0)])
    return Chart("Rules side by side", _rules_answer(found), (figure,), ("Rule", *POINT_COLUMNS), _point_rows(found))


def _add_point(figure: go.Figure, point: Point, info: RuleInfo, current: bool, place: str) -> None:
    line = {"width": 3 if current else 0, "color": "#f0b400"}
    name = f"{info.name} (yours)" if current else info.name
    figure.add_scatter(
        x=[round(point.summary.tau, 3)], y=[finite(point.worth)], mode="markers+text", name=name, text=[name],
        textposition=place, cliponaxis=False, hovertemplate="τ %{x:.2f}, %{y:.2f}×",
        marker={"symbol": info.symbol, "size": 16 if current else 13, "color": info.colour, "line": line, "opacity": 1},
    )  # fmt: skip


def _rules_answer(found: Sweep) -> str:
    points = [point for point in found.points if not math.isnan(point.worth)]
    if not points:
        return "No rule has made a step yet."
    fastest, longest = max(points, key=lambda p: p.worth), max(points, key=lambda p: p.summary.tau)
    answer = (
        f"Fastest here: {fastest.value}, {fastest.worth:.1f}× with {fastest.summary.tau:.1f} tokens per target pass. "
    )
    if longest.summary.tau - fastest.summary.tau > 0.05:
        answer += (
            f"More tokens per target pass is not faster by itself: {longest.value} has {longest.summary.tau:.1f},"
            f" and {longest.worth:.1f}×. "
        )
    else:
        answer += "No other rule has more tokens per target pass. "
    return f"{answer}{sameness_sentence(found)} {how_timed(found)}"


def sweep_chart(found: Sweep) -> Chart:
    """Chart τ and speed-up against a setting's values; the present value is a point on both curves."""
    name, unit = found.field.replace("_", " "), UNITS.get(found.field, "")
    measures = (
        ("tokens per target pass (τ)", lambda point: round(point.summary.tau, 3), theme.TARGET),
        ("times as fast as the target alone", lambda point: finite(point.worth), theme.ACCEPTED),
    )
    figures = []
    for up, read, colour in measures:
        figure = panel(name + (", nats" if unit == " nats" else ""), up)
        figure.add_scatter(
            x=[point.value for point in found.points], y=[read(point) for point in found.points], name="tried",
            mode="lines+markers", line={"color": colour, "width": 2}, marker={"size": 8, "opacity": 1},
        )  # fmt: skip
        yours = [point for point in found.points if point.value == found.current]
        figure.add_scatter(
            x=[point.value for point in yours], y=[read(point) for point in yours], name="your setting", mode="markers",
            marker={"symbol": "diamond", "size": 15, "color": theme.REJECTED, "line": {"width": 0}, "opacity": 1},
        )  # fmt: skip
        figure.update_layout(showlegend=True, legend=LEGEND)
        figures.append(figure)
    answer = _sweep_answer(found, unit)
    return Chart("Turn the knob", answer, tuple(figures), (name.capitalize(), *POINT_COLUMNS), _point_rows(found))


def _sweep_answer(found: Sweep, unit: str) -> str:
    points = [point for point in found.points if not math.isnan(point.worth)]
    if not points:
        return "No value has made a step yet."
    fastest, longest = max(points, key=lambda p: p.worth), max(points, key=lambda p: p.summary.tau)
    answer = (
        f"Fastest here: {fastest.value:g}{unit}, {fastest.worth:.1f}×; most tokens per target pass:"
        f" {longest.summary.tau:.1f}, first reached at {longest.value:g}. "
    )
    yours = next((point for point in points if point.value == found.current), None)
    if yours is not None and yours is not fastest:
        answer += f"Yours, {yours.value:g}: {yours.worth:.1f}× with {yours.summary.tau:.1f} tokens per target pass. "
    elif yours is not None:
        answer += "That is your setting. "
    return f"{answer}{sameness_sentence(found)} {how_timed(found)}"


def how_timed(found: Sweep) -> str:
    """Say what the speed-ups of a sweep rest on."""
    return ONE_RUN if any(math.isnan(point.counted) for point in found.points) else COUNTED


def _point_rows(found: Sweep) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            f"{point.value}{' (yours)' if point.value == found.current else ''}", f"{point.summary.tau:.2f}",
            times(point.counted), times(point.speedup), str(point.summary.drafted),
            str(point.summary.accepted), str(point.summary.target_passes),
            "yes" if point.same else "near-tie" if point.sameness.near_tie else "no",
        )
        for point in found.points
    )  # fmt: skip


def times(speedup: float) -> str:
    """Write a speed-up for a table."""
    return "–" if math.isnan(speedup) else f"{speedup:.2f}×"


def sameness_sentence(found: Sweep) -> str:
    """Say whether every run gave the target's own tokens."""
    differing = [str(point.value) for point in found.points if not point.same]
    if differing:
        return f"Other tokens than the target alone: {', '.join(differing)} (see the table)."
    return "Every run said what the target says alone, token for token."
