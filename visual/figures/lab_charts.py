"""Charts of the lab's experiments: pure functions of findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from specllava.findings.contrast import Contrast, VariantResult
from specllava.findings.sweep import Point, Sweep
from specllava.growth.rule import RuleInfo
from specllava.growth.rules import RULE_INFOS
from specllava.metrics import drafted_tokens
from specllava.trace import DecodeTrace
from visual.figures import theme
from visual.figures.charts import Chart, panel
from visual.figures.labels import FUNCTION_WORDS, token_label

COUNTED = "Speed-ups are counted passes at the costs measured here, so no other work tells in them; the clock's: table."
ONE_RUN = "Times are of one run each: on a machine that does other things too, trust the tokens per target pass more."
LABEL_PLACES = ("middle left", "middle left", "top center", "bottom center", "middle right", "middle right")  # by τ
UNITS: Final = {"entropy_threshold": " nats", "max_branches": " branches", "depth": " levels", "nodes": " nodes"}
NAMED_WORDS = 3  # words that an answer names


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
    return Chart("Rules side by side", _rules_answer(found), (figure,), ("Rule", *_POINT_COLUMNS), _point_rows(found))


def _add_point(figure: go.Figure, point: Point, info: RuleInfo, current: bool, place: str) -> None:
    line = {"width": 3 if current else 0, "color": "#f0b400"}
    name = f"{info.name} (yours)" if current else info.name
    figure.add_scatter(
        x=[round(point.summary.tau, 3)], y=[_finite(point.worth)], mode="markers+text", name=name, text=[name],
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
    return f"{answer}{_sameness(found)} {_how_timed(found)}"


def knob_chart(found: Sweep) -> Chart:
    """Chart τ and speed-up against a setting's values; the present value is a point on both curves."""
    name, unit = found.field.replace("_", " "), UNITS.get(found.field, "")
    measures = (
        ("tokens per target pass (τ)", lambda point: round(point.summary.tau, 3), theme.TARGET),
        ("times as fast as the target alone", lambda point: _finite(point.worth), theme.ACCEPTED),
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
        figure.update_layout(showlegend=True)
        figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
        figures.append(figure)
    answer = _knob_answer(found, unit)
    return Chart("Turn the knob", answer, tuple(figures), (name.capitalize(), *_POINT_COLUMNS), _point_rows(found))


def _knob_answer(found: Sweep, unit: str) -> str:
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
    return f"{answer}{_sameness(found)} {_how_timed(found)}"


def _how_timed(found: Sweep) -> str:
    return ONE_RUN if any(math.isnan(point.counted) for point in found.points) else COUNTED


_POINT_COLUMNS: Final = (
    "Tokens per target pass (τ)",
    "Speed-up, counted",
    "By the clock",
    "Drafted",
    "Accepted",
    "Target passes",
    "Same tokens",
)


def _point_rows(found: Sweep) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            f"{point.value}{' (yours)' if point.value == found.current else ''}", f"{point.summary.tau:.2f}",
            _times(point.counted), _times(point.speedup), str(point.summary.drafted),
            str(point.summary.accepted), str(point.summary.target_passes),
            "yes" if point.same else "near-tie" if point.sameness.near_tie else "no",
        )
        for point in found.points
    )  # fmt: skip


def _times(speedup: float) -> str:
    return "–" if math.isnan(speedup) else f"{speedup:.2f}×"


def _sameness(found: Sweep) -> str:
    differing = [str(point.value) for point in found.points if not point.same]
    if differing:
        return f"Other tokens than the target alone: {', '.join(differing)} (see the table)."
    return "Every run said what the target says alone, token for token."


def seeing_chart(found: Contrast) -> Chart:
    """Chart acceptance and entropy of one draft that is given three pictures."""
    answer = _pending(found)
    if not answer:
        seeing, blank, *_ = found.results
        best = max(side.tau for side in found.results[1:])
        helped = "Yes, here it does" if seeing.tau > best else "Not on this answer"
        answer = (
            f"{helped}: {_each(found, 'with {name} {tau:.1f}')} tokens per target pass. The draft's doubt per token:"
            f" {_each(found, '{entropy:.2f}')} nats, in that order; its best guess was the target's word"
            f" {_each(found, '{right}')} times of {len(seeing.scores)}."
            f" {_mattered(found, seeing, blank)}{_same_answer(found)}"
        )
    figures = (_tau_bars(found), _entropy_bars(found)) if found.results else ()
    return Chart("Does seeing help?", answer, figures, *_token_table(found, "entropy, nats", "entropies"))


def distillation_chart(found: Contrast) -> Chart:
    """Chart acceptance and KL from the target of two drafts."""
    answer = _pending(found)
    if not answer:
        before, after = found.results
        helped = "Yes, here it does" if after.tau > before.tau else "Not on this answer"
        answer = (
            f"{helped}: from {before.tau:.1f} to {after.tau:.1f} tokens per target pass. The draft stands"
            f" {after.scores.divergence:.3f} nats from the target on average (KL), before distillation"
            f" {before.scores.divergence:.3f}; its best guess was the target's word {_right(found, after)} instead of"
            f" {_right(found, before)} times of {len(after.scores)}."
            f" {_mattered(found, after, before)}{_same_answer(found)}"
        )
    figures = (_tau_bars(found), _distance_bars(found)) if found.results else ()
    return Chart("Does distillation help?", answer, figures, *_token_table(found, "KL, nats", "divergences"))


def _pending(found: Contrast) -> str:
    """Return why there is no answer (yet); empty if there is one."""
    if len(found.results) < len(found.names):
        return f"{len(found.results)} of {len(found.names)} runs are finished."
    if any(not side.trace.steps for side in found.results):
        return "The answer is a single token, which comes with the prompt: there was nothing to guess."
    return ""


def _each(found: Contrast, form: str) -> str:
    """Join the sides in one phrase: ``a, b and c``."""
    parts = [
        form.format(name=side.name, tau=side.tau, entropy=side.scores.entropy, right=_right(found, side))
        for side in found.results
    ]
    return ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _right(found: Contrast, side: VariantResult) -> int:
    """Count the positions at which the draft's likeliest token is the target's."""
    return sum(a == b for a, b in zip(side.scores.guesses, found.results[0].trace.token_ids, strict=True))


def _mattered(found: Contrast, better: VariantResult, worse: VariantResult) -> str:
    """Name the words to which the better side gave a much larger probability."""
    trace = found.results[0].trace
    gains = [a - b for a, b in zip(better.scores.probs, worse.scores.probs, strict=True)]
    order = sorted(range(len(gains)), key=lambda position: -gains[position])
    words = dict.fromkeys(_word_around(trace, position) for position in order if gains[position] > 0.2)
    return f"It mattered most in: {', '.join(list(words)[:NAMED_WORDS])}. " if words else ""


def _word_around(trace: DecodeTrace, position: int) -> str:
    """Return the whole word of a token; only the first token of a word has a space before it."""
    tokens, first, last = trace.token_ids, position, position + 1
    while first > 0 and trace.texts[tokens[first]][:1].isalnum():
        first -= 1
    while last < len(tokens) and trace.texts[tokens[last]][:1].isalnum():
        last += 1
    return "".join(trace.texts[token] for token in tokens[first:last]).strip() or token_label(trace, tokens[position])


def _same_answer(found: Contrast) -> str:
    if all(same.identical for same in found.sameness):
        return "The answer is the same every time: a draft only guesses."
    return "Not every run said the same tokens; the first one's are shown."


def _tau_bars(found: Contrast) -> go.Figure:
    figure = panel("", "tokens per target pass (τ)")
    figure.add_bar(
        x=[side.name for side in found.results], y=[_finite(side.tau) for side in found.results],
        marker_color=theme.ACCEPTED, text=[f"{side.tau:.1f}" for side in found.results], textposition="outside",
        cliponaxis=False,
    )  # fmt: skip
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def _distance_bars(found: Contrast) -> go.Figure:
    figure = panel("", "KL(target ‖ draft), nats per token")
    values = [round(side.scores.divergence, 4) for side in found.results]
    figure.add_bar(
        x=[side.name for side in found.results], y=values, marker_color=theme.DRAFTING,
        text=[f"{value:.3f}" for value in values], textposition="outside", cliponaxis=False,
    )  # fmt: skip
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def _entropy_bars(found: Contrast) -> go.Figure:
    """Draw the mean entropy on function words and on all others: grammar needs no picture."""
    trace = found.results[0].trace
    labels = [token_label(trace, token).lower() for token in trace.token_ids]
    small = [label in FUNCTION_WORDS or not any(map(str.isalnum, label)) for label in labels]
    figure = panel("", "the draft's entropy, nats")
    for name, wanted, colour, shape in (
        ("small words, marks", True, theme.QUIET, "/"), ("all others", False, theme.DRAFTING, ""),
    ):  # fmt: skip
        means = [
            _mean([e for e, is_small in zip(side.scores.entropies, small, strict=True) if is_small == wanted])
            for side in found.results
        ]
        figure.add_bar(
            x=[side.name for side in found.results], y=means, name=name, marker_color=colour, marker_pattern_shape=shape
        )
    figure.update_layout(showlegend=True)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def _token_table(found: Contrast, what: str, field: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Make columns and rows of a table with a row per token of the answer."""
    if not found.results:
        return ("Token",), ()
    trace = found.results[0].trace
    columns = ["Token"]
    for side in found.results:
        columns += [f"{side.name}: {what}", "gave the token", "drafted"]
    # A run that parts from the first one (a near-tie) has no verdict for the tokens behind.
    taken = [
        dict(enumerate(drafted_tokens(side.trace)[: None if same.identical else same.position]))
        for side, same in zip(found.results, found.sameness, strict=True)
    ]
    rows = []
    for position, token in enumerate(trace.token_ids):
        row = [token_label(trace, token)]
        for side, accepted in zip(found.results, taken, strict=True):
            value: Sequence[float] = getattr(side.scores, field)
            verdict = "–" if not position or position not in accepted else "yes" if accepted[position] else "no"
            row += [f"{value[position]:.2f}", f"{side.scores.probs[position]:.2f}", verdict]
        rows.append(tuple(row))
    return tuple(columns), tuple(rows)


def _mean(values: Sequence[float]) -> float | None:
    return round(math.fsum(values) / len(values), 4) if values else None


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
