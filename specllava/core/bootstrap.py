"""Pooled rates, and figures that several of them give, with bootstrap intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final

import numpy as np
import numpy.typing as npt

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

    Raises:
        ValueError: rates of different numbers of prompts.
    """
    count = len(rates[0])
    if any(len(parts) != count for parts in rates):
        counts = ", ".join(f"{len(parts)} of {name}" for name, parts in zip(ascii_uppercase, rates, strict=False))
        raise ValueError(f"a ratio needs every side of each prompt: {counts}")
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
    found = figures(np.stack([column[drawn].sum(axis=1) for column in parts.T], axis=-1))
    found = found[np.isfinite(found)]  # draws of prompts without a step have no rate
    if not found.size:
        return Ratio(value, math.nan, math.nan)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high))


def pooled_ratio(a: Sequence[Part], b: Sequence[Part], seed: int = 0) -> Ratio:
    """Compare two rates: the second over the first, as :func:`pooled` does."""
    return pooled([a, b], lambda rates: rates[..., 1] / rates[..., 0], seed)
