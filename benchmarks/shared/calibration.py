"""How far a draft's probabilities are from the shares of its guesses that the target accepts, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specllava.core.metrics import Bin
from specllava.findings.bootstrap import LEVEL, RESAMPLES

BINS: Final = 10  # of probability, equally wide


def error_interval(answers: Sequence[Sequence[Bin]]) -> dict[str, float]:
    """Return the expected calibration error of pooled answers with its 95 % interval of the bootstrap over answers.

    Drawing answers anew adds noise to shares whose distance is taken without its sign, so intervals lean upwards.

    Args:
        answers: the bins of each, as ``metrics.reliability`` counts them.
    """
    parts = np.array([[(one.tested, one.accepted, one.promised) for one in bins] for bins in answers])
    drawn = np.random.default_rng(0).integers(len(parts), size=(RESAMPLES, len(parts)))
    errors = _errors(parts[drawn].sum(axis=1))
    errors = errors[np.isfinite(errors)]  # draws of answers without a guess have none
    low, high = np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if errors.size else (np.nan, np.nan)
    ends = {"value": float(_errors(parts.sum(axis=0))), "low": float(low), "high": float(high)}
    return {name: round(end, 5) for name, end in ends.items()}


def _errors(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the errors ``[...]`` of totals ``[..., bins, 3]``."""
    off: npt.NDArray[np.float64] = np.abs(totals[..., 1] - totals[..., 2]).sum(-1)
    with np.errstate(invalid="ignore"):
        off /= totals[..., 0].sum(-1)
    return off
