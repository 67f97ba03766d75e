"""Scores of a draft on each token of a given answer (teacher forcing)."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
