"""Chart of one answer, guessed by several drafters."""

from __future__ import annotations

import math
from typing import Final

from specllava.core.metrics import acceptance_by_depth
from specllava.core.trace import DecodeTrace
from specllava.findings.sweep import Point, Sweep
from visual.figures.chart import LEGEND, Chart, finite, panel
from visual.figures.sweep_charts import how_timed, sameness_sentence, times

COLOURS: Final = ("#4c78a8", "#e4572e", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#f58518")
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
DEEPEST: Final = 8  # levels in the chart of acceptance: behind them few guesses are judged
SHOWN: Final = 3  # levels in the table
COLUMNS: Final = (
    "Drafter",
    "Tokens per target pass (τ)",
    "Speed-up, counted",
    "By the clock",
    "ms per token",
    "Draft pass, ms",
    "Draft reads the prompt, ms",
    "Accepted at depth 1, 2, 3",
    "Same tokens",
)


def drafters_chart(found: Sweep) -> Chart:
    """Chart every drafter as a point, tokens per target pass against speed-up, and its acceptance by depth."""
    race = panel("tokens per target pass (τ)", "times as fast as the target alone")
    depths = panel("depth of the guess", "share accepted")
    looks = {value: (COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]) for i, value in enumerate(found.values)}
    traces = dict(found.runs)
    for point in found.points:
        colour, symbol = looks[point.value]
        name = _name(found, point)
        marker = {"symbol": symbol, "size": 15, "color": colour, "opacity": 1}
        race.add_scatter(
            x=[round(point.summary.tau, 3)], y=[finite(point.worth)], mode="markers", name=name, cliponaxis=False,
            hovertemplate="τ %{x:.2f}, %{y:.2f}×", marker=marker,
        )  # fmt: skip
        shares = _acceptance(traces[point.value], DEEPEST)
        depths.add_scatter(
            x=list(range(1, len(shares) + 1)), y=shares, mode="lines+markers", name=name, showlegend=False,
            line={"color": colour, "width": 2}, marker={**marker, "size": 8}, hovertemplate="depth %{x}: %{y:.2f}",
        )  # fmt: skip
    race.update_layout(showlegend=True, legend=LEGEND, height=340, hovermode="closest")
    race.update_xaxes(range=[0, 1.15 * max((point.summary.tau for point in found.points), default=1.0)])
    depths.update_xaxes(dtick=1)
    depths.update_yaxes(range=[0, 1.03])
    rows = tuple(_row(found, point, traces[point.value]) for point in found.points)
    return Chart("Who guesses best?", _answer(found), (race, depths), COLUMNS, rows)


def _answer(found: Sweep) -> str:
    points = [point for point in found.points if not math.isnan(point.worth)]
    if not points:
        return "No drafter has made a step yet."
    fastest, longest = max(points, key=lambda p: p.worth), max(points, key=lambda p: p.summary.tau)
    answer = (
        f"Fastest here: {fastest.value}, {fastest.worth:.1f}× with {fastest.summary.tau:.1f} tokens per target pass. "
    )
    if longest is not fastest:
        answer += f"Most tokens per target pass: {longest.value}, {longest.summary.tau:.1f}, and {longest.worth:.1f}×. "
    return f"{answer}{sameness_sentence(found)} {how_timed(found)}"


def _name(found: Sweep, point: Point) -> str:
    return f"{point.value} (yours)" if point.value == found.current else str(point.value)


def _row(found: Sweep, point: Point, trace: DecodeTrace) -> tuple[str, ...]:
    cost = dict(found.draft_pass).get(point.value)
    shares = _acceptance(trace, SHOWN)
    emitted = sum(len(step.emitted) for step in trace.steps)
    return (
        _name(found, point), f"{point.summary.tau:.2f}", times(point.counted), times(point.speedup),
        f"{1000 * trace.decode_seconds / emitted:.2f}", "–" if cost is None else f"{1000 * cost:.2f}",
        "–" if cost is None else f"{1000 * trace.prefill.draft_seconds:.1f}",
        " · ".join("–" if share is None else f"{share:.2f}" for share in shares) or "–",
        "yes" if point.same else "near-tie" if point.sameness.near_tie else "no",
    )  # fmt: skip


def _acceptance(trace: DecodeTrace, deepest: int) -> list[float | None]:
    """Return the share of judged guesses that were accepted, from depth 1 on; ``None`` where none was judged."""
    found = acceptance_by_depth([trace])
    judged = [found.get(depth, (0, 0)) for depth in range(1, min(deepest, max(found, default=0)) + 1)]
    return [round(hits / tests, 3) if tests else None for hits, tests in judged]
