"""A pooled rate, or the ratio of two, with its bootstrap interval over prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 2000
LEVEL: Final = 0.95
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


def pooled_ratio(a: Sequence[Part], b: Sequence[Part], seed: int = 0) -> Ratio:
    """Compare two rates, each the total of its numerators over the total of its denominators.

    The interval is the percentile bootstrap's (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter
    13). Prompts are drawn with replacement, both rates pooled anew each time. A prompt keeps its A and its B together.

    Args:
        a, b: a part per prompt, in the same order.
        seed: of the draws; same seed, same interval.

    Raises:
        ValueError: parts of another number of prompts.
    """
    if len(a) != len(b):
        raise ValueError(f"a ratio needs both sides of every prompt: {len(a)} of A, {len(b)} of B")
    if not a:
        return Ratio(math.nan, math.nan, math.nan)
    parts = np.concatenate([np.array(a, dtype=float), np.array(b, dtype=float)], axis=1)  # [prompts, 4]
    value = float(_ratios(parts.sum(axis=0)))
    if len(a) < 2:
        return Ratio(value, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(len(a), size=(RESAMPLES, len(a)))
    ratios = _ratios(np.stack([column[drawn].sum(axis=1) for column in parts.T], axis=-1))
    ratios = ratios[np.isfinite(ratios)]  # draws of prompts without a step have no rate
    if not ratios.size:
        return Ratio(value, math.nan, math.nan)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high))


def pooled_rate(parts: Sequence[Part], seed: int = 0) -> Ratio:
    """Return a rate, the total of its numerators over the total of its denominators, with its interval over prompts."""
    return pooled_ratio([(1.0, 1.0)] * len(parts), parts, seed)


def _ratios(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the ratios ``[...]`` of totals ``[..., 4]``; NaN or infinite where a denominator is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(totals[..., 2] / totals[..., 3], totals[..., 0] / totals[..., 1])
