"""Charts of a whole run. Each answers one question: the question is its title, the answer is given in words, and
a table has the same numbers.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import plotly.graph_objects as go

from specllava.metrics import (
    JudgedNode,
    Outcome,
    acceptance_by_depth,
    acceptance_by_rank,
    accepted_lengths,
    calibration_error,
    judged_nodes,
    outcomes_by_entropy,
    reliability,
    summarise,
)
from specllava.trace import DecodeTrace
from visual.figures import theme
from visual.figures.charts import LEGEND, Chart, panel
from visual.figures.labels import FUNCTION_WORDS, even_choices, token_label

NATS = (0.1, 0.3, 0.7, 1.2)  # inner bounds of the entropy bins, in nats
UNSURE = 0.3  # nats from which on a draft is called unsure
RELIABILITY_BINS = 5
HARDEST = 10  # words before which the draft was most unsure
FEWEST = 5  # positions on an axis that counts, so that a short answer's bars are no wider than a long one's
OUTCOMES: dict[Outcome, tuple[str, str, str]] = {  # name, colour, pattern: no meaning hangs on colour alone
    "favourite": ("the draft's favourite was accepted", theme.ACCEPTED, ""),
    "saved": ("another branch saved it", theme.SAVED, "/"),
    "missed": ("missed", theme.REJECTED, "x"),
}


def charts(alone: DecodeTrace | None, together: DecodeTrace | None) -> list[Chart]:
    """Make every chart that a race has an answer for; none if nothing was drafted."""
    if together is None or not any(step.tree.drafted for step in together.steps):
        return []
    return [_how_far(together), _entropy(together), _where_it_breaks(together), _hard_words(together),
            _time(alone, together)]  # fmt: skip


def _how_far(trace: DecodeTrace) -> Chart:
    """Chart the accepted length of every step."""
    lengths, drafted = accepted_lengths(trace), [step.tree.drafted for step in trace.steps]
    counts = Counter(lengths)
    steps = list(range(1, len(lengths) + 1))
    by_step = panel("step", "tokens accepted").add_bar(x=steps, y=lengths, marker_color=theme.ACCEPTED)
    _whole_numbers(by_step, 1, len(steps), max(lengths))
    reach = list(range(max(lengths) + 1))
    how_often = panel("tokens accepted", "steps")
    how_often.add_bar(x=reach, y=[counts[n] for n in reach], marker_color=theme.ACCEPTED)
    _whole_numbers(how_often, 0, len(reach), max(counts.values()))
    own, none = sum(not step.bonus_unused for step in trace.steps), counts[0]
    answer = (
        f"On average {sum(lengths) / len(lengths):.1f} of {sum(drafted) / len(drafted):.1f} drafted tokens were"
        f" accepted per target pass; {max(lengths)} at best, none in {none} of {len(lengths)}. The target's own came"
        f" on top in {own}: that makes τ = {summarise([trace]).tau:.1f} tokens per target pass."
    )
    rows = tuple((str(i), str(d), str(n)) for i, d, n in zip(steps, drafted, lengths, strict=True))
    return Chart("How far did each guess go?", answer, (by_step, how_often), ("Step", "Drafted", "Accepted"), rows)


def _entropy(trace: DecodeTrace) -> Chart:
    """Chart what came of the draft's guesses by its entropy, and acceptance by its probability."""
    bins = outcomes_by_entropy([trace], NATS)
    names = [f"0–{NATS[0]:g}", *(f"{low:g}–{high:g}" for low, high in pairwise(NATS)), f"over {NATS[-1]:g}"]
    figures = _outcomes(bins, names), _calibration(trace)
    sure, unsure = outcomes_by_entropy([trace], (UNSURE,))
    answer = (
        f"Where the draft was unsure (over {UNSURE:g} nats, {even_choices(UNSURE)}), its favourite was accepted"
        f" {_of(unsure['favourite'], unsure.total())}, another branch saved {unsure['saved']} and {unsure['missed']}"
        f" {'was' if unsure['missed'] == 1 else 'were'} missed. Where it was sure, its favourite was"
        f" accepted {_of(sure['favourite'], sure.total())}."
    )
    rows = tuple(
        (f"{name} nats", str(found.total()), *(str(found[outcome]) for outcome in OUTCOMES))
        for name, found in zip(names, bins, strict=True)
    )
    promised = tuple(
        (f"probability {b.promised / b.tested:.2f}", str(b.tested), str(b.accepted), "–", str(b.tested - b.accepted))
        for b in reliability([trace], RELIABILITY_BINS) if b.tested
    )  # fmt: skip
    columns = ("Where the draft gave", "Judged", "Favourite accepted", "Saved by another branch", "Missed")
    return Chart("What came of the draft's doubt?", answer, figures, columns, (*rows, *promised))


def _outcomes(bins: Sequence[Counter[Outcome]], names: Sequence[str]) -> go.Figure:
    """Stack the shares of what came of each bin's guesses, with their counts in the bars."""
    figure = panel("the draft's entropy, nats (0.7 ≈ 2 even choices, 1.1 ≈ 3)", "share of the judged places")
    for outcome, (name, colour, pattern) in OUTCOMES.items():
        figure.add_bar(
            x=names, y=[_share(found[outcome], found.total()) for found in bins], name=name, marker_color=colour,
            marker_pattern=_hatch(pattern), text=[str(found[outcome] or "") for found in bins], textposition="inside",
            insidetextanchor="middle", textangle=0, hovertemplate="%{text}",
            insidetextfont={"color": theme.text_on(colour)},
        )  # fmt: skip
    figure.update_layout(barmode="stack", showlegend=True, legend=LEGEND)
    figure.update_yaxes(range=[0, 1.0], tickformat=".0%").update_xaxes(type="category")
    return figure


def _hatch(shape: str) -> dict[str, object]:
    """Make light lines on a bar's own colour."""
    return {"shape": shape, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.5)", "size": 7, "solidity": 0.25}


def _calibration(trace: DecodeTrace) -> go.Figure:
    """Draw the share that the target took against the probability that the draft gave."""
    bins = [b for b in reliability([trace], RELIABILITY_BINS) if b.tested]
    apart = calibration_error(bins)
    across = "probability that the draft gave" + ("" if math.isnan(apart) else f" (off by {apart:.2f} on average)")
    figure = panel(across, "share that the target took")
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": theme.QUIET, "dash": "dot", "width": 1.5})
    figure.add_scatter(
        x=[b.promised / b.tested for b in bins], y=[b.accepted / b.tested for b in bins], mode="lines+markers",
        line={"color": theme.REJECTED, "width": 2},
        marker={"size": [6 + 1.5 * math.sqrt(b.tested) for b in bins], "opacity": 1},
    )  # fmt: skip
    figure.update_yaxes(range=[0, 1.04], tickformat=".0%")
    return figure.update_xaxes(range=[0, 1.04], tickformat=".0%")


def _where_it_breaks(trace: DecodeTrace) -> Chart:
    """Chart the acceptance by depth and by rank among siblings."""
    depths, ranks = acceptance_by_depth([trace]), acceptance_by_rank([trace])
    by_depth = panel("depth of the guess", "share accepted")
    by_depth.add_bar(x=list(depths), y=[_share(*d) for d in depths.values()], marker_color=theme.ACCEPTED)
    by_rank = panel("rank among siblings", "share accepted")
    by_rank.add_bar(x=[r + 1 for r in ranks], y=[_share(*r) for r in ranks.values()], marker_color=theme.ACCEPTED)
    for figure, count in ((by_depth, max(depths)), (by_rank, max(ranks) + 1)):
        _whole_numbers(figure, 1, count)
        figure.update_yaxes(range=[0, 1.04], tickformat=".0%")
    first, last = depths[1], depths[max(depths)]
    answer = f"A first guess stood {_of(*first)}; at depth {max(depths)}, where reached, {_of(*last)}."
    if 1 in ranks:
        answer += f" The draft's best guess was taken {_of(*ranks[0])}, its second, where it had one, {_of(*ranks[1])}."
    rows = (
        *((f"depth {d}", str(t), _percent(_share(a, t))) for d, (a, t) in depths.items()),
        *((f"rank {r + 1}", str(t), _percent(_share(a, t))) for r, (a, t) in ranks.items()),
    )
    return Chart(
        "Where along the guess does it break?", answer, (by_depth, by_rank), ("Where", "Tested", "Accepted"), rows
    )


def _hard_words(trace: DecodeTrace) -> Chart:
    """Chart the tokens before which the draft was most unsure, with what came of its guesses."""
    words = [
        (judged, token_label(trace, step.emitted[judged.position]), number)
        for number, step in enumerate(trace.steps, start=1)
        for judged in judged_nodes(step)
    ]
    doubted = [one for one in words if one[0].entropy is not None]
    hardest = sorted(doubted, key=lambda one: -(one[0].entropy or 0))[:HARDEST]
    small = [judged for judged, word, _ in words if word.lower() in FUNCTION_WORDS]
    others = [judged for judged, word, _ in words if word.lower() not in FUNCTION_WORDS]
    kinds = ("small words (the, of, is …)", small), ("all others", others)
    answer = (
        f"Of small words the draft's favourite was accepted {_of(*_favourites(small))}, of all others"
        f" {_of(*_favourites(others))}. "
    )
    if hardest:
        judged, word, number = hardest[0]
        nats = judged.entropy or 0
        answer += f"Most unsure it was before {word} in step {number}: {nats:.2f} nats, {even_choices(nats)}."
    rows = tuple(
        (word, str(number), f"{judged.entropy:.2f}", OUTCOMES[judged.outcome][0]) for judged, word, number in hardest
    )
    columns = ("Token", "Step", "Entropy before it, nats", "What came of it")
    return Chart("Which words are hard?", answer.strip(), (_hardest(hardest), _by_kind(kinds)), columns, rows)


def _hardest(hardest: Sequence[tuple[JudgedNode, str, int]]) -> go.Figure:
    """Draw a bar per token, the hardest on top: rows are numbers, since a word may occur twice."""
    figure = panel("the draft's entropy before it, nats", None)
    rows = list(range(len(hardest), 0, -1))
    for outcome, (name, colour, pattern) in OUTCOMES.items():
        chosen = [(row, judged) for row, (judged, _, _) in zip(rows, hardest, strict=True) if judged.outcome == outcome]
        figure.add_bar(
            y=[row for row, _ in chosen], x=[judged.entropy for _, judged in chosen], orientation="h", name=name,
            marker_color=colour, marker_pattern=_hatch(pattern), width=0.7,
        )  # fmt: skip
    names = [html.escape(word) for _, word, _ in hardest]  # Plotly reads labels as a kind of HTML
    figure.update_layout(barmode="stack", showlegend=True, legend=LEGEND)
    return figure.update_yaxes(
        tickvals=rows,
        ticktext=names,
        range=[len(hardest) - max(len(hardest), FEWEST) + 0.4, len(hardest) + 0.6],
        automargin=True,
    )


def _by_kind(kinds: Sequence[tuple[str, Sequence[JudgedNode]]]) -> go.Figure:
    """Draw the outcomes of every kind of word, as shares with their counts."""
    bins = [Counter(judged.outcome for judged in found) for _, found in kinds]
    figure = _outcomes(bins, [name for name, _ in kinds])
    return figure.update_layout(showlegend=False, bargap=0.55, xaxis_title=None)


def _favourites(judged: Sequence[JudgedNode]) -> tuple[int, int]:
    return sum(each.outcome == "favourite" for each in judged), len(judged)


def _time(alone: DecodeTrace | None, together: DecodeTrace) -> Chart:
    """Chart the milliseconds of every step by phase."""
    seconds = [step.seconds for step in together.steps]
    steps = list(range(1, len(seconds) + 1))
    pace = 1e3 * summarise([alone]).seconds_per_token if alone else math.nan  # nan: stopped before its first step
    parts = (
        ("drafting", [1e3 * s.draft for s in seconds], theme.DRAFTING),
        ("the target's pass", [1e3 * s.verify for s in seconds], theme.ACCEPTED),
        ("bookkeeping", [1e3 * s.keep for s in seconds], theme.QUIET),
    )
    figure = panel("step", "milliseconds")
    for name, values, colour in parts:
        figure.add_bar(x=steps, y=[round(v, 3) for v in values], marker_color=colour, name=name)
    without = [] if math.isnan(pace) else [pace * len(step.emitted) for step in together.steps]
    if without:
        figure.add_scatter(
            x=steps, y=[round(v, 3) for v in without], mode="markers", name="target alone, same words",
            marker={"symbol": "line-ew", "size": 14, "line": {"width": 2.5, "color": theme.TARGET}},
        )  # fmt: skip
    figure.update_layout(barmode="stack", showlegend=True, legend=LEGEND)
    _whole_numbers(figure, 1, len(steps))
    whole = sum(sum(values) for _, values, _ in parts)
    drafting, checking, keeping = (_percent(sum(values) / whole if whole else None) for _, values, _ in parts)
    against = f", where the target alone needs {sum(without):.0f} ms for the same words" if without else ""
    answer = (
        f"{drafting} of it drafting, {checking} the target's passes, {keeping} bookkeeping:"
        f" {whole:.0f} ms{against}. Reading the picture comes before it."
    )
    last = [f"{value:.1f}" for value in without] or ["–"] * len(steps)
    rows = tuple((str(i), *(f"{values[i - 1]:.1f}" for _, values, _ in parts), last[i - 1]) for i in steps)
    columns = ("Step", "Drafting, ms", "Target's pass, ms", "Bookkeeping, ms", "Target alone, ms")
    return Chart("Where does the time go?", answer, (figure,), columns, rows)


def _whole_numbers(figure: go.Figure, first: int, count: int, tallest: int | None = None) -> None:
    """Count along the axes in whole numbers, with bars as wide for a short answer as for a long one.

    Args:
        first: number of the first position.
        count: positions from there on.
        tallest: the largest value upwards, if that is a count as well.
    """
    last = first + max(count, FEWEST) - 1
    figure.update_xaxes(range=[first - 0.6, last + 0.6], tick0=first, dtick=max(1, math.ceil(count / 12)))
    if tallest is not None:
        figure.update_yaxes(dtick=max(1, math.ceil(tallest / 6)))


def _share(accepted: int, tested: int) -> float | None:
    return round(accepted / tested, 4) if tested else None


def _of(accepted: int, tested: int) -> str:
    return f"{accepted} of {tested}" if tested else "never tested"


def _percent(share: float | None) -> str:
    """Format a share for a table; a dash if there is none."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.0f} %"
