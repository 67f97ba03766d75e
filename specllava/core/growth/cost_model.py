"""Costs of a pair's passes on this machine, and what is learnt about them and about acceptance while decoding.

Let ``P_v`` be the probability that node ``v`` is accepted. A step yields ``1 + sum(P_v)`` tokens and takes the target's
pass and the draft's levels. Decoding is fastest where ``tokens - R * seconds`` is largest, ``R`` being the rate of the
whole run (Dinkelbach's method for ratios). The cost model holds the measured costs, the rate and the calibration of
``P_v``; the rule that uses it is ``growth.rules.cost_aware``.
"""

from __future__ import annotations

import json
import math
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specllava.core.tree import DraftTree

BIN_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # of the draft's probability
PRIOR_WEIGHT = 8.0  # verdicts in a bin that weigh as much as the draft's own probability
FIRST_HIT_RATE = 0.8  # that one of a node's children is accepted, until there are verdicts
FIRST_TOKENS = 2.0  # tokens per step to begin with
DECAY = 0.99  # weight of a step's seconds at every later one: a machine's speed drifts, so about 100 steps count
CALIBRATION_DECAY = 0.999  # of verdicts, which come in many bins: about 1,000 steps count
LONGEST_VERIFY, LONGEST_LEVEL = 257, 64  # tokens of a pass that a fitted curve covers: all that a config allows


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one pass by its number of tokens: entry ``n - 1`` is for ``n`` tokens.

    Args:
        verify: of the target; a tree of ``n`` drafted tokens takes ``n + 1``.
        draft: of the draft, for one level.
    """

    verify: tuple[float, ...]
    draft: tuple[float, ...]

    @classmethod
    def fit(cls, verify: Mapping[int, float], draft: Mapping[int, float]) -> Costs:
        """Fit a curve to measured points, along which more tokens never cost less, to the longest pass there is.

        The points are smoothed and not joined, because one more token costs less than a measurement's error.
        """
        return cls(_fit(verify, LONGEST_VERIFY), _fit(draft, LONGEST_LEVEL))

    def verify_seconds(self, drafted: int) -> float:
        """Return the seconds of verifying ``drafted`` tokens."""
        return _at(self.verify, drafted + 1)

    def level_seconds(self, width: int) -> float:
        """Return the seconds of expanding ``width`` nodes at once."""
        return _at(self.draft, width)

    def step_seconds(self, widths: Iterable[int], drafted: int) -> float:
        """Return the seconds of a step's passes: the draft's, by their tokens, and the target's verification."""
        return math.fsum(map(self.level_seconds, widths)) + self.verify_seconds(drafted)


def read_costs(file: Path) -> Costs:
    """Read costs that were measured before: ``{"verify": [seconds, …], "draft": [seconds, …]}``.

    Raises:
        ValueError: something else.
    """
    try:
        given = json.loads(file.read_bytes())
        curves = [tuple(map(float, given[name])) for name in ("verify", "draft")]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} holds no costs of passes: {type(error).__name__}: {error}") from error
    if not all(curve and all(0 < seconds < math.inf for seconds in curve) for curve in curves):
        raise ValueError(f"{file} holds no costs of passes: each list needs seconds above 0")
    return Costs(*curves)


def _at(curve: Sequence[float], tokens: int) -> float:
    """Read a curve, extrapolated after its end with its last slope."""
    if tokens <= len(curve):
        return curve[tokens - 1]
    slope = curve[-1] - curve[-2] if len(curve) > 1 else 0.0
    return curve[-1] + slope * (tokens - len(curve))


def _fit(points: Mapping[int, float], longest: int) -> tuple[float, ...]:
    """Fit ``a + b [n > 1] + c sqrt(n) + d n`` by least squares, all but ``a`` not below 0.

    The curve is level on a GPU and bent on a CPU. The first token is apart,
    since a product with a vector runs another kernel than one with a matrix.
    """
    measured = np.array(sorted(points), dtype=float)
    values = np.array([points[int(n)] for n in measured])
    numbers = np.arange(1.0, max(float(longest), measured[-1]) + 1)
    fits = []
    for used in sorted(product((False, True), repeat=3), key=sum):
        at, curve = (_basis(n)[:, [True, *used]] for n in (measured, numbers))
        weights = np.linalg.lstsq(at, values, rcond=None)[0]
        fitted = curve @ weights
        if (weights[1:] >= 0).all() and fitted[0] > 0:  # a pass that costs nothing would bend all that is priced by it
            misses = at @ weights / values - 1
            fits.append((round(float(np.square(misses).sum()), 9), fitted))
    return tuple(min(fits, key=lambda fit: fit[0])[1].tolist())  # of equal ones that with the fewest terms


def _basis(n: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the terms of a cost curve, ``[numbers, 4]``."""
    return np.stack([np.ones_like(n), n > 1, np.sqrt(n), n], axis=1)


@dataclass(slots=True)
class Calibration:
    """Rate at which the target accepts a guess to which the draft gave probability ``q``, learnt from its verdicts.

    The best guess and the others are kept apart. Of two guesses as probable as each other to the draft, a greedy
    target accepts the best one more often. Old verdicts fade by :data:`CALIBRATION_DECAY` per step.
    """

    accepted: list[float] = field(default_factory=lambda: [0.0] * 2 * (len(BIN_EDGES) + 1))
    judged: list[float] = field(default_factory=lambda: [0.0] * 2 * (len(BIN_EDGES) + 1))

    def probability(self, q: float, best: bool) -> float:
        """Return a mean of the draft's own probability and the accepted share, weighted by the number of verdicts."""
        index = 2 * bisect(BIN_EDGES, q) + best
        return (PRIOR_WEIGHT * q + self.accepted[index]) / (PRIOR_WEIGHT + self.judged[index])

    def add(self, q: float, best: bool, accepted: bool) -> None:
        """Count a verdict."""
        index = 2 * bisect(BIN_EDGES, q) + best
        self.accepted[index] += accepted
        self.judged[index] += 1

    def fade(self) -> None:
        """Reduce the weight of what was counted."""
        self.accepted = [CALIBRATION_DECAY * count for count in self.accepted]
        self.judged = [CALIBRATION_DECAY * count for count in self.judged]


@dataclass(slots=True)
class TimingCorrection:
    """Ratio of the recent to the measured seconds of passes: bookkeeping, and the machine's present speed."""

    _taken: float = 0.0
    _planned: float = 0.0

    @property
    def factor(self) -> float:
        return self._taken / self._planned if self._planned else 1.0

    def add(self, taken: float, planned: float) -> None:
        self._taken, self._planned = DECAY * self._taken + taken, DECAY * self._planned + planned


@dataclass(slots=True)
class CostModel:
    """Costs of a pair's passes on this machine, with the rate and acceptance learnt since it was loaded.

    Answers share it: a single one is too short to learn from.
    """

    costs: Costs
    calibration: Calibration = field(default_factory=Calibration)
    verify_correction: TimingCorrection = field(default_factory=TimingCorrection)
    draft_correction: TimingCorrection = field(default_factory=TimingCorrection)
    _tokens: float = FIRST_TOKENS
    _seconds: float = 0.0
    _planned: tuple[float, float] = (0.0, 0.0)  # of the last step: to draft, to verify
    _hits: float = FIRST_HIT_RATE * PRIOR_WEIGHT  # accepted nodes of which a child was accepted
    _tries: float = PRIOR_WEIGHT  # accepted nodes that had children

    def __post_init__(self) -> None:
        self._seconds = self.costs.verify_seconds(0) + self.costs.level_seconds(1)

    @property
    def rate(self) -> float:
        """Recent tokens per second."""
        return self._tokens / self._seconds

    @property
    def prices_per_second(self) -> tuple[float, float]:
        """Tokens that a second of drafting and one of verifying cost at the present rate; seconds as in ``costs``."""
        rate = self.rate
        return rate * self.draft_correction.factor, rate * self.verify_correction.factor

    @property
    def hit_rate(self) -> float:
        """The share of accepted nodes with children of which one was accepted, whatever its probability."""
        return self._hits / self._tries

    def update(self, tree: DraftTree, path: Sequence[int], widths: Sequence[int]) -> None:
        """Learn that the target kept ``path`` of a tree that was drafted in levels of these widths.

        Verdicts count where the parent was accepted: only there does the probability of a node matter.
        """
        self.calibration.fade()
        accepted = set(path)
        parents: set[int] = set()  # whose best guess was met; siblings are best first
        for node in range(1, len(tree)):
            parent = tree.parents[node]
            if parent not in accepted:
                continue
            hit, best = node in accepted, parent not in parents
            self.calibration.add(math.exp(tree.log_probs[node]), best, hit)
            parents.add(parent)
            self._hits += hit
        self._tries += len(parents)
        self._planned = (
            sum(self.costs.level_seconds(width) for width in widths),
            self.costs.verify_seconds(tree.drafted),
        )
        seconds = self.draft_correction.factor * self._planned[0] + self.verify_correction.factor * self._planned[1]
        self._tokens, self._seconds = DECAY * self._tokens + len(path), DECAY * self._seconds + seconds

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        """Correct the costs by the actual seconds of the step last learnt from, unless a clock failed (NaN, inf)."""
        if not (0 <= draft_seconds < math.inf and 0 <= target_seconds < math.inf):
            return
        self.draft_correction.add(draft_seconds, self._planned[0])
        self.verify_correction.add(target_seconds, self._planned[1])
