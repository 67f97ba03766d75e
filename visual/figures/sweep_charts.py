"""Charts of one answer at several settings: rules side by side, drafters, and the values of one setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import plotly.graph_objects as go

from specllava.metrics import acceptance_by_depth
from specllava.trace import DecodeTrace
from specllava.findings.sweep import Point, Sweep
from visual.figures import theme
from visual.figures.charts import LEGEND, Chart, finite, panel

ONE_RUN = "Times are of one run each: on a machine that does other things too, trust the tokens per target pass more."
LABEL_POSITIONS = ("middle left", "middle left", "top center", "bottom center", "middle right", "middle right")  # by τ
UNITS: Final = {"entropy_threshold": " nats", "max_branches": " branches", "depth": " levels", "nodes": " nodes"}
UNITS_OF_ONE: Final = {" nats": " nat", " branches": " branch", " levels": " level", " nodes": " node"}
TAU, WORTH = "tokens per target pass (τ)", "times as fast as the target alone"  # axes
COLOURS: Final = ("#4c78a8", "#e4572e", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#f58518")  # of drafters
RULE_MARKERS: Final = MappingProxyType({
    "entropy": {"color": "#0072B2", "symbol": "circle"},
    "chain": {"color": "#D55E00", "symbol": "square"},
    "fixed": {"color": "#009E73", "symbol": "diamond"},
    "topk": {"color": "#CC79A7", "symbol": "triangle-up"},
    "sequoia": {"color": "#56B4E9", "symbol": "x"},
})  # fmt: skip
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
DEEPEST: Final = 8  # levels in the chart of acceptance: below them few guesses are judged
SHOWN: Final = 3  # levels in the table
SPEED_COLUMNS: Final = ("Tokens per target pass (τ)", "Speed-up")
POINT_COLUMNS: Final = (*SPEED_COLUMNS, "Drafted", "Accepted", "Target passes", "Same tokens")
DRAFTER_COLUMNS: Final = (
    "Drafter", *SPEED_COLUMNS, "ms per token", "Draft pass, ms", "Draft reads the prompt, ms",
    "Accepted at depth 1, 2, 3", "Same tokens",
)  # fmt: skip


def rules_chart(found: Sweep) -> Chart:
    """Chart every rule as a point: tokens per target pass against speed-up."""
    figure = panel(TAU, WORTH)
    ordered = sorted(found.points, key=lambda point: point.summary.tau)
    positions = {
        point.value: LABEL_POSITIONS[number * len(LABEL_POSITIONS) // len(ordered)]
        for number, point in enumerate(ordered)
    }
    for point in found.points:
        current, name = point.value == found.current, _name(found, point)
        marker = {
            **RULE_MARKERS[str(point.value)], "size": 16 if current else 13, "opacity": 1,
            "line": {"width": 3 if current else 0, "color": "#f0b400"},
        }  # fmt: skip
        _add_point(figure, point, name, marker, mode="markers+text", text=[name], textposition=positions[point.value])
    if found.alone is not None:
        figure.add_scatter(
            x=[1], y=[1], mode="markers+text", name="target alone", text=["target alone"], textposition="bottom center",
            marker={"symbol": "line-ew", "size": 15, "line": {"width": 3, "color": theme.QUIET}},
        )  # fmt: skip
    figure.update_layout(height=400, hovermode="closest")
    _scale_tau(figure, found)
    return Chart("Rules side by side", _rules_answer(found), (figure,), ("Rule", *POINT_COLUMNS), _point_rows(found))


def _add_point(figure: go.Figure, point: Point, name: str, marker: Mapping[str, object], **more: object) -> None:
    figure.add_scatter(
        x=[round(point.summary.tau, 3)], y=[finite(point.speedup)], name=name, marker=marker, cliponaxis=False,
        hovertemplate="τ %{x:.2f}, %{y:.2f}×", **more,
    )  # fmt: skip


def _scale_tau(figure: go.Figure, found: Sweep) -> None:
    figure.update_xaxes(range=[0, 1.15 * max((point.summary.tau for point in found.points), default=1.0)])


def _name(found: Sweep, point: Point) -> str:
    return f"{point.value} (yours)" if point.value == found.current else str(point.value)


def _fastest_and_longest(found: Sweep) -> tuple[Point, Point] | None:
    """Return the points of the largest speed-up and of the largest τ; ``None`` before the first."""
    points = [point for point in found.points if not math.isnan(point.speedup)]
    if not points:
        return None
    return max(points, key=lambda point: point.speedup), max(points, key=lambda point: point.summary.tau)


def _describe_fastest(point: Point, unit: str = "") -> str:
    bring = f"{point.speedup:.1f}× with {point.summary.tau:.1f} tokens per target pass. "
    return f"{_superlative(point)}: {_value(point, unit)}, {bring}"


def _superlative(point: Point) -> str:
    """Introduce the point of the largest speed-up; the target alone, at 1.0×, is in the same chart."""
    shown = round(point.speedup, 1)
    if shown > 1:
        return "Fastest here"
    return f"{'As' if shown == 1 else 'None is as'} fast as the target alone; best here"


def _value(point: Point, unit: str = "") -> str:
    """Write a value with its unit, which is singular after 1."""
    if not unit:
        return str(point.value)
    return f"{point.value:g}{UNITS_OF_ONE[unit] if point.value == 1 else unit}"


def _brings_more(point: Point, other: Point) -> bool:
    """Return whether a point has more tokens per target pass as they are shown, so that a tie is no win."""
    return round(point.summary.tau, 1) > round(other.summary.tau, 1)


def _rules_answer(found: Sweep) -> str:
    best = _fastest_and_longest(found)
    if best is None:
        return "No rule has made a step yet."
    fastest, longest = best
    answer = _describe_fastest(fastest)
    if _brings_more(longest, fastest):
        answer += (
            f"More tokens per target pass is not faster by itself: {longest.value} has {longest.summary.tau:.1f},"
            f" and {longest.speedup:.1f}×. "
        )
    else:
        answer += "No other rule has more tokens per target pass. "
    return f"{answer}{_sameness_sentence(found)} {ONE_RUN}"


def sweep_chart(found: Sweep) -> Chart:
    """Chart τ and speed-up against a setting's values; the present value is a point on both curves."""
    name, unit = found.field.replace("_", " "), UNITS.get(found.field, "")
    measures = (
        (TAU, lambda point: round(point.summary.tau, 3), theme.TARGET),
        (WORTH, lambda point: finite(point.speedup), theme.ACCEPTED),
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
    best = _fastest_and_longest(found)
    if best is None:
        return "No value has made a step yet."
    fastest, longest = best
    answer = _describe_fastest(fastest, unit)
    if _brings_more(longest, fastest):
        answer += f"Most tokens per target pass: {longest.summary.tau:.1f}, first reached at {longest.value:g}{unit}. "
    yours = next((p for p in found.points if p.value == found.current and not math.isnan(p.speedup)), None)
    if yours is not None and yours is not fastest:
        answer += f"Yours, {yours.value:g}: {yours.speedup:.1f}× with {yours.summary.tau:.1f} tokens per target pass. "
    elif yours is not None:
        answer += "That is your setting. "
    return f"{answer}{_sameness_sentence(found)} {ONE_RUN}"


def _point_rows(found: Sweep) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            _name(found, point), f"{point.summary.tau:.2f}",
            _times(point.speedup), str(point.summary.drafted),
            str(point.summary.accepted), str(point.summary.target_passes),
            _same_tokens(point),
        )
        for point in found.points
    )  # fmt: skip


def _same_tokens(point: Point) -> str:
    return "yes" if point.same else "near-tie" if point.sameness.near_tie else "no"


def _times(speedup: float) -> str:
    """Write a speed-up for a table."""
    return "–" if math.isnan(speedup) else f"{speedup:.2f}×"


def _sameness_sentence(found: Sweep) -> str:
    """Say whether every run gave the target's own tokens."""
    differing = [str(point.value) for point in found.points if not point.same]
    if differing:
        return f"Other tokens than the target alone: {', '.join(differing)} (see the table)."
    return "Every run said what the target says alone, token for token."


def drafters_chart(found: Sweep) -> Chart:
    """Chart every drafter as a point, tokens per target pass against speed-up, and its acceptance by depth."""
    race = panel(TAU, WORTH)
    depths = panel("depth of the guess", "share accepted")
    looks = {value: (COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]) for i, value in enumerate(found.values)}
    traces = dict(found.runs)
    for point in found.points:
        colour, symbol = looks[point.value]
        name = _name(found, point)
        marker = {"symbol": symbol, "size": 15, "color": colour, "opacity": 1}
        _add_point(race, point, name, marker, mode="markers")
        shares = _acceptance(traces[point.value], DEEPEST)
        depths.add_scatter(
            x=list(range(1, len(shares) + 1)), y=shares, mode="lines+markers", name=name, showlegend=False,
            line={"color": colour, "width": 2}, marker={**marker, "size": 8}, hovertemplate="depth %{x}: %{y:.2f}",
        )  # fmt: skip
    race.update_layout(showlegend=True, legend=LEGEND, height=340, hovermode="closest")
    _scale_tau(race, found)
    depths.update_xaxes(dtick=1)
    depths.update_yaxes(range=[0, 1.03])
    rows = tuple(_drafter_row(found, point, traces[point.value]) for point in found.points)
    return Chart("Who guesses best?", _drafters_answer(found), (race, depths), DRAFTER_COLUMNS, rows)


def _drafters_answer(found: Sweep) -> str:
    best = _fastest_and_longest(found)
    if best is None:
        return "No drafter has made a step yet."
    fastest, longest = best
    answer = _describe_fastest(fastest)
    if _brings_more(longest, fastest):
        most = f"{longest.value}, {longest.summary.tau:.1f}, and {longest.speedup:.1f}×"
        answer += f"Most tokens per target pass: {most}. "
    return f"{answer}{_sameness_sentence(found)} {ONE_RUN}"


def _drafter_row(found: Sweep, point: Point, trace: DecodeTrace) -> tuple[str, ...]:
    cost = dict(found.draft_pass).get(point.value)
    shares = _acceptance(trace, SHOWN)
    emitted = sum(len(step.emitted) for step in trace.steps)
    return (
        _name(found, point), f"{point.summary.tau:.2f}", _times(point.speedup),
        f"{1000 * trace.decode_seconds / emitted:.2f}", "–" if cost is None else f"{1000 * cost:.2f}",
        "–" if cost is None else f"{1000 * trace.prefill.draft_seconds:.1f}",
        " · ".join("–" if share is None else f"{share:.2f}" for share in shares) or "–",
        _same_tokens(point),
    )  # fmt: skip


def _acceptance(trace: DecodeTrace, deepest: int) -> list[float | None]:
    """Return the share of judged guesses that were accepted, from depth 1 on; ``None`` where none was judged."""
    found = acceptance_by_depth([trace])
    judged = [found.get(depth, (0, 0)) for depth in range(1, min(deepest, max(found, default=0)) + 1)]
    return [round(hits / tests, 3) if tests else None for hits, tests in judged]
