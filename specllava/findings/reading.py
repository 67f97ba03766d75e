"""How a model read a text that was there already: what it expected at each place, all words before it given."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """A draft on the target's answer; every tuple has one entry per token.

    Args:
        entropies: of the draft's distribution, in nats.
        probs: the draft's probability of the token that stands there.
        guesses: the draft's likeliest token.
        divergences: KL(target ‖ draft) in nats: what the draft misses of what the target thinks.

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
            raise ValueError(f"a reading needs one entry per token in every list: lengths {lengths}")

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
