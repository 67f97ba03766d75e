"""Figures of traces: tau, speed-up, sameness, and bootstrap intervals over prompts. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from specllava.trace import DecodeTrace, Prefill, StepTrace

# Two passes of different width run different matrix kernels: logits differ in the last bits, and a
# float32 near-tie within this margin may flip. A difference at a larger margin is a bug.
NEAR_TIE_MARGIN = 1e-4
UNUSED_PASSES: Final = 32  # of the target, before a draft is reported
UNUSED_TAU: Final = 1.05  # tokens per pass below which it is


@dataclass(frozen=True, slots=True)
class RunTotals:
    """Totals of one lane over one or more runs; every ratio is derived from them.

    Args:
        tokens: of the answers; ``first_tokens`` of them came with the prefills.
        accepted: drafted tokens that are part of the answers; those after an answer's end are not.
        decode_seconds: of the steps: drafting, verifying and keeping.
        prefill_seconds: of the prefills, the vision tower's included.
        draft_passes, wall_seconds: of the draft model, and of everything, where they were measured.
    """

    runs: int = 0
    tokens: int = 0
    target_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    vision_seconds: float = 0.0
    wall_seconds: float = 0.0
    first_tokens: int = 0
    draft_passes: int = 0

    @property
    def step_tokens(self) -> int:
        """Tokens emitted by steps: all but those of the prefills."""
        return self.tokens - self.first_tokens

    @property
    def tau(self) -> float:
        """Tokens per target pass, the bonus token included; 1.0 for target-only, NaN with no step."""
        return _ratio(self.step_tokens, self.target_passes)

    @property
    def acceptance(self) -> float:
        """Share of drafted tokens that were accepted; NaN if none was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds per emitted token, prefill apart."""
        return _ratio(self.decode_seconds, self.step_tokens)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(self.step_tokens, self.decode_seconds)

    @property
    def seconds_per_pass(self) -> float:
        """Seconds of one pass of the target that verifies, whatever its number of tokens."""
        return _ratio(self.verify_seconds, self.target_passes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two lanes emitted the same tokens, and if not, where they part.

    ``margin`` is the reference lane's logit distance between its first and second choice at the first difference; of a
    token that was drawn, the probability between the number and the next token's share. ``position`` counts emitted
    tokens from 0. Both are ``None`` for identical outputs.
    """

    identical: bool
    tokens: int
    position: int | None = None
    margin: float | None = None

    @property
    def near_tie(self) -> bool:
        """The lanes part at a tie that rounding decides."""
        return self.margin is not None and self.margin <= NEAR_TIE_MARGIN


def prefill_totals(prefill: Prefill) -> RunTotals:
    """Count the prefill of one run."""
    return RunTotals(
        runs=1, tokens=1, first_tokens=1, prefill_seconds=prefill.total, vision_seconds=prefill.vision_seconds
    )


def step_totals(step: StepTrace) -> RunTotals:
    """Count one step."""
    spent = step.seconds
    return RunTotals(
        tokens=len(step.emitted), target_passes=1, drafted=step.tree.drafted, accepted=len(step.emitted_nodes),
        decode_seconds=spent.total, draft_seconds=spent.draft, verify_seconds=spent.verify,
    )  # fmt: skip


def pool_totals(parts: Iterable[RunTotals]) -> RunTotals:
    """Add up totals of one lane."""
    rows = list(parts)
    sums: dict[str, Any] = {
        field.name: (math.fsum if field.type == "float" else sum)(getattr(row, field.name) for row in rows)
        for field in fields(RunTotals)
    }
    return RunTotals(**sums)


def summarise(traces: Iterable[DecodeTrace]) -> RunTotals:
    """Pool runs of one lane."""
    return pool_totals(
        part for trace in traces for part in (prefill_totals(trace.prefill), *map(step_totals, trace.steps))
    )


def unused_draft(draft: str, drafter: str, totals: RunTotals) -> str:
    """Return a line on a draft model whose guesses are hardly ever accepted; empty for any other, and early on."""
    early = totals.target_passes < UNUSED_PASSES or not totals.drafted
    if drafter != "model" or early or totals.tau >= UNUSED_TAU:
        return ""
    return (
        f"the target hardly accepts what {draft} guesses: {totals.tau:.2f} tokens per pass in {totals.target_passes}"
        " passes. Check that it was made for this target, chat template and precision, and its d2t if it has one"
    )


def speedup(reference: RunTotals, candidate: RunTotals) -> float:
    """Reference seconds per token over candidate seconds per token, prefill apart."""
    return _ratio(reference.seconds_per_token, candidate.seconds_per_token)


def pass_ratio(reference: RunTotals, candidate: RunTotals) -> float:
    """Seconds of a pass that checks a tree over seconds of a pass of the reference, which is of a single token."""
    return _ratio(candidate.seconds_per_pass, reference.seconds_per_pass)


def compare(reference: DecodeTrace, candidate: DecodeTrace) -> Comparison:
    """Compare the tokens of two lanes; the margin at a difference is the reference's."""
    return compare_ids(reference, candidate.token_ids)


def compare_ids(reference: DecodeTrace, theirs: Sequence[int]) -> Comparison:
    """Compare a lane with bare token ids, such as another library gives."""
    ours = reference.token_ids
    shared = min(len(ours), len(theirs))
    for position in range(shared):
        if ours[position] != theirs[position]:
            return Comparison(False, shared, position, margin_at(reference, position))
    if len(ours) == len(theirs):
        return Comparison(True, shared)
    return Comparison(False, shared, shared, None)


Outcome = Literal["favourite", "saved", "missed"]


@dataclass(frozen=True, slots=True)
class JudgedNode:
    """A node of the accepted path whose children the target judged, and what came of it.

    Args:
        position: of the token after it among those that the step emitted.
        entropy: of the draft's distribution after it, in nats, if it was recorded.
        children: guesses that the tree tried after it.
        outcome: ``favourite``: the child to which the draft gave most was accepted; ``saved``: another child was, so
            that a chain of favourites would have ended here; ``missed``: none was.
    """

    node: int
    position: int
    entropy: float | None
    children: tuple[int, ...]
    outcome: Outcome


def judged_nodes(step: StepTrace) -> tuple[JudgedNode, ...]:
    """List the nodes of the accepted path that have children, in order; nothing after the answer's end counts."""
    children, ranks = step.tree.children(), step.tree.sibling_ranks()
    taken, judged = step.emitted_nodes, []
    for position, node in enumerate(step.verification.path[: len(step.emitted)]):
        if not children[node]:
            continue
        rank = ranks[taken[position]] if position < len(taken) else None
        outcome: Outcome = "missed" if rank is None else "saved" if rank else "favourite"
        judged.append(JudgedNode(node, position, step.tree.entropies[node], children[node], outcome))
    return tuple(judged)


def saved_tokens(step: StepTrace) -> int:
    """Count the tokens that a step brought and the draft's favourites alone would not have brought.

    These would have ended where another guess was right, and there the target's own token would have come.
    """
    forks = (judged.position for judged in judged_nodes(step) if judged.outcome == "saved")
    return max(0, len(step.emitted) - next(forks, len(step.emitted)) - 1)


def margin_at(trace: DecodeTrace, position: int) -> float:
    """Return the target's margin where it chose a token: top logit less second, or as drawn.

    Raises:
        IndexError: the trace has fewer tokens.
    """
    if position == 0:
        return trace.prefill.first_margin
    seen = 1
    for step in trace.steps:
        if position < seen + len(step.emitted):
            node = step.verification.path[position - seen]
            drawn = (draw.margin for draw in step.draws if draw.node == node)
            return next((margin for margin in drawn if margin is not None), step.view.margins[node])
        seen += len(step.emitted)
    raise IndexError(f"position {position} is after the {seen} emitted tokens")


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


Z: Final = 1.96  # of a 95 % interval


def wilson(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a share."""
    share, spread = right / of, Z * Z / of
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / of / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


RESAMPLES: Final = 2000
LEVEL: Final = 0.95
Array = npt.NDArray[np.float64]
Part = tuple[float, float]  # numerator and denominator of one prompt's rate


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as large the rate of B is as that of A.

    Args:
        low, high: ends of the 95 % interval over prompts; NaN with fewer than two prompts.
    """

    value: float
    low: float
    high: float


def pooled(rates: Sequence[Sequence[Part]], combine: Callable[[Array], Array], seed: int = 0) -> Ratio:
    """Return a figure that several rates give, each the total of its numerators over the total of its denominators.

    The interval is the percentile bootstrap's (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter
    13). Prompts are drawn with replacement, all rates pooled anew each time. A prompt keeps its parts together.

    Args:
        rates: for each a part per prompt, in the same order.
        combine: makes figures ``[...]`` of rates ``[..., rates]``; NaN and infinity count as none.
        seed: of the draws; same seed, same interval.
    """
    count = len(rates[0])
    if not count:
        return Ratio(math.nan, math.nan, math.nan)
    parts = np.concatenate([np.array(each, dtype=float) for each in rates], axis=1)  # [prompts, 2 · rates]

    def figures(totals: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return combine(totals[..., ::2] / totals[..., 1::2])

    value = float(figures(parts.sum(axis=0)))
    if count < 2:
        return Ratio(value, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    values = figures(np.stack([column[drawn].sum(axis=1) for column in parts.T], axis=-1))
    values = values[np.isfinite(values)]  # draws of prompts without a step have no rate
    if not values.size:
        return Ratio(value, math.nan, math.nan)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high))


def pooled_ratio(a: Sequence[Part], b: Sequence[Part]) -> Ratio:
    """Compare two rates: the second over the first, as :func:`pooled` does."""
    return pooled([a, b], lambda rates: rates[..., 1] / rates[..., 0])
