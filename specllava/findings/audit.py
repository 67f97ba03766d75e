"""Findings about answers of any engine, without and with speculation: where and why they part. No torch.

A greedy engine may take a token below the target's best only where rounding in its precision can hide the distance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from specllava.core.metrics import NEAR_TIE_MARGIN

Precision = Literal["float32", "bfloat16", "float16"]
Verdict = Literal["equal", "near-tie", "bug"]
FRACTION_BITS: Final[dict[str, int]] = {"float32": 23, "bfloat16": 7, "float16": 10}


@dataclass(frozen=True, slots=True)
class Choice:
    """A next token with the target's float32 logit.

    Args:
        token: ``None`` for the end of an answer, whose logit is that of the best token that ends answers.
    """

    token: int | None
    text: str
    logit: float


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference of two answers.

    Args:
        position: tokens that the answers share.
        best: the target's two best tokens there.
        chosen: what A and B go on with.
        precision: of the engine.
        allowed: ulps below the target's best logit that rounding explains.
    """

    position: int
    best: tuple[Choice, Choice]
    chosen: tuple[Choice, Choice]
    precision: Precision
    allowed: float

    @property
    def margin(self) -> float:
        """Logit distance of the target's two best tokens."""
        return self.best[0].logit - self.best[1].logit

    @property
    def lags(self) -> tuple[float, float]:
        """Ulps between the target's best logit and those of A and B."""
        a, b = self._distances
        return a / self._ulp, b / self._ulp

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the sides whose token no rounding explains."""
        most = max(NEAR_TIE_MARGIN, self.allowed * self._ulp)
        return tuple(side for side, distance in zip("AB", self._distances, strict=True) if not distance <= most)

    @property
    def verdict(self) -> Verdict:
        return "bug" if self.wrong else "near-tie"

    @property
    def _distances(self) -> tuple[float, float]:
        a, b = (self.best[0].logit - one.logit for one in self.chosen)
        return a, b

    @property
    def _ulp(self) -> float:
        return ulp(self.best[0].logit, self.precision)

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON data; what is infinite is ``None``."""
        sides = {
            side: _choice_json(one) | {"ulps": _finite(lag)}
            for side, one, lag in zip("ab", self.chosen, self.lags, strict=True)
        }
        best = [_choice_json(one) for one in self.best]
        return {"position": self.position, **sides, "best": best, "margin": self.margin, "wrong": list(self.wrong)}


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Verdicts on all pairs of answers.

    Args:
        pairs: number of them.
        differences: by row, from 1; rows without one are equal.
        allowed: as of :class:`Difference`.
    """

    target: str
    precision: Precision
    allowed: float
    pairs: int
    differences: Mapping[int, Difference]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Pairs by verdict."""
        found = Counter(one.verdict for one in self.differences.values())
        return {"equal": self.pairs - len(self.differences), "near-tie": found["near-tie"], "bug": found["bug"]}

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON data, with a record per row."""
        rows: list[dict[str, Any]] = [{"row": number, "verdict": "equal"} for number in range(1, self.pairs + 1)]
        for number, one in self.differences.items():
            rows[number - 1] |= {"verdict": one.verdict, **one.as_json()}
        facts = {"target": self.target, "precision": self.precision, "ulps": self.allowed}
        return {**facts, "counts": self.counts, "rows": rows}


def ulp(value: float, precision: Precision) -> float:
    """Return the distance of neighbouring numbers at a logit's size; below 1 that at 1, as its terms are larger."""
    return math.ldexp(1.0, math.frexp(max(abs(value), 1.0))[1] - 1 - FRACTION_BITS[precision])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first position at which two answers differ, the end of one included; ``None`` if they are equal."""
    shared = min(len(a), len(b))
    parted = next((at for at in range(shared) if a[at] != b[at]), shared)
    return None if parted == len(a) == len(b) else parted


def _choice_json(one: Choice) -> dict[str, Any]:
    return {"token": one.token, "text": one.text, "logit": _finite(one.logit)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
