"""Comparison of several variants of a draft on one answer of one target, with each draft's scores on its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specllava.metrics import Comparison, compare, summarise
from specllava.trace import DecodeTrace


@dataclass(frozen=True, slots=True)
class DraftScores:
    """Scores of a draft on the target's answer; every tuple has one entry per token.

    Args:
        entropies: of the draft's distribution, in nats.
        probs: the draft's probability of the answer's token.
        guesses: the draft's likeliest token.
        divergences: KL(target ‖ draft) in nats: how far the draft's distribution is from the target's.

    Raises:
        ValueError: tuples of different lengths.
    """

    entropies: tuple[float, ...]
    probs: tuple[float, ...]
    guesses: tuple[int, ...]
    divergences: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = (len(self.entropies), len(self.probs), len(self.guesses), len(self.divergences))
        if len(set(lengths)) != 1:
            raise ValueError(f"scores need one entry per token in every list: lengths {lengths}")

    def __len__(self) -> int:
        return len(self.entropies)

    @property
    def entropy(self) -> float:
        """Mean, in nats; NaN for an empty text."""
        return _mean(self.entropies)

    @property
    def divergence(self) -> float:
        """Mean KL(target ‖ draft), in nats; NaN for an empty text."""
        return _mean(self.divergences)


def _mean(values: tuple[float, ...]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The result of one variant: a draft and the prompt that it reads.

    Args:
        name: such as ``a blank picture`` or ``before``.
        trace: the answer, decoded with its guesses.
        scores: the draft on the first result's answer, so that all drafts are scored on the same tokens.
    """

    name: str
    trace: DecodeTrace
    scores: DraftScores

    @property
    def tau(self) -> float:
        """Tokens per target pass."""
        return summarise([self.trace]).tau


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """The trees that all sides grow at one position of the answer.

    Args:
        position: of the token that the trees guess first, counted from 0.
        traces: one per side, in order, with a first step that starts there.
    """

    position: int
    traces: tuple[DecodeTrace, ...]


@dataclass(frozen=True, slots=True)
class Ablation:
    """An ablation that is running or finished; the first result gives the answer.

    Args:
        names: of all sides to come.
        results: of the sides that are complete.
        comparisons: trees at selected positions, the most informative first; only once every side is complete.
    """

    names: tuple[str, ...]
    results: tuple[VariantResult, ...] = ()
    comparisons: tuple[TreeComparison, ...] = ()

    def __post_init__(self) -> None:
        for result in self.results:
            if len(result.scores) != len(self.results[0].trace.token_ids):
                raise ValueError(
                    f"{result.name}: scores of {len(result.scores)} tokens"
                    f" for an answer of {len(self.results[0].trace.token_ids)}"
                )

    @property
    def sameness(self) -> tuple[Comparison, ...]:
        """The answer of every result against the first result's."""
        return tuple(compare(self.results[0].trace, result.trace) for result in self.results)
