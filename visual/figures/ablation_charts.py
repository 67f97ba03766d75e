"""Charts of one answer with several drafts, or one draft given several pictures: does seeing, or distillation, help?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from specllava.metrics import drafted_tokens
from specllava.token_text import begins_inside, join_texts
from specllava.trace import DecodeTrace
from specllava.findings.ablation import Ablation, VariantResult
from visual.figures import theme
from visual.figures.charts import LEGEND, Chart, finite, panel
from visual.figures.labels import FUNCTION_WORDS, token_label

NAMED_WORDS: Final = 3  # words that an answer names


def image_ablation_chart(found: Ablation) -> Chart:
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
            f" {_name_gains(found, seeing, blank)}{_same_answer(found)}"
        )
    figures = (_tau_bars(found), _entropy_bars(found)) if found.results else ()
    return Chart("Does seeing help?", answer, figures, *_token_table(found, "entropy, nats", "entropies"))


def distillation_chart(found: Ablation) -> Chart:
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
            f" {_name_gains(found, after, before)}{_same_answer(found)}"
        )
    figures = (_tau_bars(found), _distance_bars(found)) if found.results else ()
    return Chart("Does distillation help?", answer, figures, *_token_table(found, "KL, nats", "divergences"))


def _pending(found: Ablation) -> str:
    """Return why there is no answer (yet); empty if there is one."""
    if len(found.results) < len(found.names):
        return f"{len(found.results)} of {len(found.names)} runs are finished."
    if any(not side.trace.steps for side in found.results):
        return "The answer is a single token, which comes with the prompt: there was nothing to guess."
    return ""


def _each(found: Ablation, form: str) -> str:
    """Join the sides in one phrase: ``a, b and c``."""
    parts = [
        form.format(name=side.name, tau=side.tau, entropy=side.scores.entropy, right=_right(found, side))
        for side in found.results
    ]
    return ", ".join(parts[:-1]) + f" and {parts[-1]}"


def _right(found: Ablation, side: VariantResult) -> int:
    """Count the positions at which the draft's likeliest token is the target's."""
    return sum(a == b for a, b in zip(side.scores.guesses, found.results[0].trace.token_ids, strict=True))


def _name_gains(found: Ablation, better: VariantResult, worse: VariantResult) -> str:
    """Name the words to which the better side gave a much larger probability."""
    trace = found.results[0].trace
    gains = [a - b for a, b in zip(better.scores.probs, worse.scores.probs, strict=True)]
    order = sorted(range(len(gains)), key=lambda position: -gains[position])
    words = dict.fromkeys(_word_around(trace, position) for position in order if gains[position] > 0.2)
    return f"It mattered most in: {', '.join(list(words)[:NAMED_WORDS])}. " if words else ""


def _word_around(trace: DecodeTrace, position: int) -> str:
    """Return the whole word of a token; only the first token of a word has a space before it."""
    tokens, first, last = trace.token_ids, position, position + 1
    while first > 0 and _goes_on(trace.texts[tokens[first]]):
        first -= 1
    while last < len(tokens) and _goes_on(trace.texts[tokens[last]]):
        last += 1
    word = join_texts(trace.texts[token] for token in tokens[first:last]).strip()
    return word or token_label(trace, tokens[position])


def _goes_on(text: str) -> bool:
    return text[:1].isalnum() or begins_inside(text)


def _same_answer(found: Ablation) -> str:
    if all(same.identical for same in found.sameness):
        return "The answer is the same every time: a draft only guesses."
    return "Not every run said the same tokens; the first one's are shown."


def _tau_bars(found: Ablation) -> go.Figure:
    figure = panel("", "tokens per target pass (τ)")
    figure.add_bar(
        x=[side.name for side in found.results], y=[finite(side.tau) for side in found.results],
        marker_color=theme.ACCEPTED, text=[f"{side.tau:.1f}" for side in found.results], textposition="outside",
        cliponaxis=False,
    )  # fmt: skip
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def _distance_bars(found: Ablation) -> go.Figure:
    figure = panel("", "KL(target ‖ draft), nats per token")
    values = [round(side.scores.divergence, 4) for side in found.results]
    figure.add_bar(
        x=[side.name for side in found.results], y=values, marker_color=theme.DRAFTING,
        text=[f"{value:.3f}" for value in values], textposition="outside", cliponaxis=False,
    )  # fmt: skip
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def _entropy_bars(found: Ablation) -> go.Figure:
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
    figure.update_layout(showlegend=True, legend=LEGEND)
    figure.update_xaxes(type="category", range=[-0.6, len(found.names) - 0.4])
    return figure


def drafted_by_position(found: Ablation) -> list[dict[int, bool]]:
    """Return for every side which positions of the answer were drafted and accepted; the first is the prompt's.

    A run that parts from the first one (a near-tie) has no verdict for the tokens after that.
    """
    return [
        dict(list(enumerate(drafted_tokens(side.trace)))[1 : None if same.identical else same.position])
        for side, same in zip(found.results, found.sameness, strict=True)
    ]


def _token_table(found: Ablation, what: str, field: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Make columns and rows of a table with a row per token of the answer."""
    if not found.results:
        return ("Token",), ()
    trace = found.results[0].trace
    columns = ["Token"]
    for side in found.results:
        columns += [f"{side.name}: {what}", "gave the token", "drafted"]
    rows, drafted = [], drafted_by_position(found)
    for position, token in enumerate(trace.token_ids):
        row = [token_label(trace, token)]
        for side, accepted in zip(found.results, drafted, strict=True):
            value: Sequence[float] = getattr(side.scores, field)
            verdict = {True: "yes", False: "no", None: "–"}[accepted.get(position)]
            row += [f"{value[position]:.2f}", f"{side.scores.probs[position]:.2f}", verdict]
        rows.append(tuple(row))
    return tuple(columns), tuple(rows)


def _mean(values: Sequence[float]) -> float | None:
    return round(math.fsum(values) / len(values), 4) if values else None
