"""Charts of a whole run. Each answers one question: the question is its title, the answer stands beside it in words,
and the same numbers stand in a table.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from dataclasses import dataclass

import plotly.graph_objects as go

from specllava.metrics import (
    acceptance_by_depth,
    acceptance_by_entropy,
    acceptance_by_rank,
    accepted_lengths,
    calibration_error,
    reliability,
    summarise,
)
from specllava.trace import DecodeTrace
from visual.figures import theme
from visual.figures.labels import FUNCTION_WORDS, token_label

NATS = (0.1, 0.3, 0.7, 1.2)  # inner bounds of the entropy bins, in nats
RELIABILITY_BINS = 5
HARDEST = 10  # words that the draft missed most often


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
    reach = list(range(max(lengths) + 1))
    how_often = panel("tokens accepted", "steps")
    how_often.add_bar(x=reach, y=[counts[n] for n in reach], marker_color=theme.ACCEPTED)
    how_often.update_xaxes(dtick=1 if len(reach) < 9 else 2)
    none = counts[0]
    answer = (
        f"{sum(lengths) / len(lengths):.1f} tokens a step on average, of {sum(drafted) / len(drafted):.1f} drafted; "
        f"{max(lengths)} at best, none in {none} of {len(lengths)} steps. The target's own token comes on top."
    )
    rows = tuple((str(i), str(d), str(n)) for i, d, n in zip(steps, drafted, lengths, strict=True))
    return Chart("How far did each guess go?", answer, (by_step, how_often), ("Step", "Drafted", "Accepted"), rows)


def _entropy(trace: DecodeTrace) -> Chart:
    """Chart the acceptance by the draft's entropy and by its probability."""
    by_entropy = acceptance_by_entropy([trace], NATS)
    names = [*(f"≤ {edge:g}" for edge in NATS), f"> {NATS[-1]:g}"]
    bins = [b for b in reliability([trace], RELIABILITY_BINS) if b.tested]
    acceptance = panel("entropy, nats", "a guess was right")
    acceptance.add_bar(x=names, y=[_share(*d) for d in by_entropy], marker_color=theme.ACCEPTED)
    calibration = panel("probability that the draft gave", "share that the target took")
    calibration.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": theme.QUIET, "dash": "dot", "width": 1.5})
    calibration.add_scatter(
        x=[b.promised / b.tested for b in bins], y=[b.accepted / b.tested for b in bins], mode="lines+markers",
        line={"color": theme.REJECTED, "width": 2},
        marker={"size": [6 + 1.5 * math.sqrt(b.tested) for b in bins], "opacity": 1},
    )  # fmt: skip
    for figure in (acceptance, calibration):
        figure.update_yaxes(range=[0, 1.04], tickformat=".0%")
    calibration.update_xaxes(range=[0, 1.04], tickformat=".0%")
    sure, unsure = by_entropy[0], (sum(d[0] for d in by_entropy[-2:]), sum(d[1] for d in by_entropy[-2:]))
    answer = (
        f"Below {NATS[0]:g} nats a guess was right {_of(*sure)}, above {NATS[-2]:g} nats {_of(*unsure)}. "
        f"What the draft promises and what the target takes lie {calibration_error(bins):.2f} apart on average."
    )
    rows = (
        *((f"entropy {name}", str(t), percent(_share(a, t))) for name, (a, t) in zip(names, by_entropy, strict=True)),
        *((f"probability {b.promised / b.tested:.2f}", str(b.tested), percent(b.accepted / b.tested)) for b in bins),
    )
    columns = ("Where the draft gave", "Tested", "Right")
    return Chart("Does doubt predict rejection?", answer, (acceptance, calibration), columns, rows)


def _where_it_breaks(trace: DecodeTrace) -> Chart:
    """Chart the acceptance by depth and by rank among siblings."""
    depths, ranks = acceptance_by_depth([trace]), acceptance_by_rank([trace])
    by_depth = panel("depth of the guess", "share accepted")
    by_depth.add_bar(x=list(depths), y=[_share(*d) for d in depths.values()], marker_color=theme.ACCEPTED)
    by_rank = panel("rank among siblings", "share accepted")
    by_rank.add_bar(x=[r + 1 for r in ranks], y=[_share(*r) for r in ranks.values()], marker_color=theme.ACCEPTED)
    for figure in (by_depth, by_rank):
        figure.update_yaxes(range=[0, 1.04], tickformat=".0%").update_xaxes(dtick=1)
    first, last = depths[1], depths[max(depths)]
    answer = f"A first guess stood {_of(*first)}; at depth {max(depths)}, where reached, {_of(*last)}."
    if 1 in ranks:
        answer += f" The draft's best guess was taken {_of(*ranks[0])}, its second, where it had one, {_of(*ranks[1])}."
    rows = (
        *((f"depth {d}", str(t), percent(_share(a, t))) for d, (a, t) in depths.items()),
        *((f"rank {r + 1}", str(t), percent(_share(a, t))) for r, (a, t) in ranks.items()),
    )
    return Chart(
        "Where along the guess does it break?", answer, (by_depth, by_rank), ("Where", "Tested", "Accepted"), rows
    )


def _hard_words(trace: DecodeTrace) -> Chart:
    """Chart the tokens that the draft missed most often."""
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for step in trace.steps:
        right.update(token_label(trace, step.tree.tokens[node]) for node in step.verification.accepted)
        if step.tree.children()[step.verification.path[-1]]:  # guessed, and all of it wrong
            wrong[token_label(trace, step.verification.bonus_token)] += 1
    hardest = [word for word, _ in wrong.most_common(HARDEST)][::-1]
    labels = [html.escape(word) for word in hardest]  # Plotly reads labels as a kind of HTML
    figure = panel("times", None)
    figure.add_bar(y=labels, x=[wrong[w] for w in hardest], marker_color=theme.REJECTED, orientation="h", name="missed")
    figure.add_bar(y=labels, x=[right[w] for w in hardest], marker_color=theme.ACCEPTED, orientation="h", name="right")
    figure.update_layout(barmode="stack", showlegend=True)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    figure.update_xaxes(dtick=max(1, max([wrong[w] + right[w] for w in hardest], default=1) // 6))
    figure.update_yaxes(type="category", automargin=True)
    small = [word for word in {*right, *wrong} if word.lower() in FUNCTION_WORDS]
    grammar = sum(right[w] for w in small), sum(right[w] + wrong[w] for w in small)
    content = right.total() - grammar[0], right.total() + wrong.total() - grammar[1]
    answer = f"Of small words (the, of, is …) the draft had {_of(*grammar)} right, of all others {_of(*content)}."
    rows = tuple((word, str(wrong[word]), str(right[word])) for word in hardest[::-1])
    return Chart("Which words are hard?", answer, (figure,), ("Token", "Missed", "Right"), rows)


def _time(alone: DecodeTrace | None, together: DecodeTrace) -> Chart:
    """Chart the milliseconds of every step by phase."""
    seconds = [step.seconds for step in together.steps]
    steps = list(range(1, len(seconds) + 1))
    pace = 1e3 * summarise([alone]).seconds_per_token if alone else math.nan  # nan: stopped before its first step
    parts = (
        ("draft", [1e3 * s.draft for s in seconds], theme.DRAFTING),
        ("verify", [1e3 * s.verify for s in seconds], theme.ACCEPTED),
        ("rest", [1e3 * s.keep for s in seconds], theme.QUIET),
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
    figure.update_layout(barmode="stack", showlegend=True)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    whole = sum(sum(values) for _, values, _ in parts)
    drafting, verifying, rest = (percent(sum(values) / whole if whole else None) for _, values, _ in parts)
    against = f", where the target alone needs {sum(without):.0f} ms for the same words" if without else ""
    answer = f"{drafting} of it drafting, {verifying} verifying, {rest} the rest: {whole:.0f} ms{against}."
    last = [f"{value:.1f}" for value in without] or ["–"] * len(steps)
    rows = tuple((str(i), *(f"{values[i - 1]:.1f}" for _, values, _ in parts), last[i - 1]) for i in steps)
    columns = ("Step", "Draft, ms", "Verify, ms", "Rest, ms", "Target alone, ms")
    return Chart("Where does the time go?", answer, (figure,), columns, rows)


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


def _share(accepted: int, tested: int) -> float | None:
    return round(accepted / tested, 4) if tested else None


def _of(accepted: int, tested: int) -> str:
    return f"{accepted} of {tested}" if tested else "never tested"


def percent(share: float | None) -> str:
    """Format a share for a table; a dash if there is none."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.0f} %"
