"""One answer, decoded at several values of one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specllava.metrics import Comparison, RunTotals, compare, speedup, summarise
from specllava.trace import DecodeTrace

Value = str | int | float
# Settings that are numbers, and the values that a sweep tries beside the present one.
SWEEP_VALUES: Final[dict[str, tuple[Value, ...]]] = {
    "entropy_threshold": (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5),
    "max_branches": (1, 2, 3, 4, 6, 8),
    "depth": (1, 2, 3, 4, 6, 8, 10, 12),
    "nodes": (2, 4, 8, 12, 16, 24, 32, 48),
}


@dataclass(frozen=True, slots=True)
class Point:
    """Result of one value.

    Args:
        speedup: against the target alone, by the clock; NaN if nothing was decoded.
        sameness: its tokens against those of the target alone.
    """

    value: Value
    summary: RunTotals
    speedup: float
    sameness: Comparison

    @property
    def same(self) -> bool:
        """Whether the tokens are the same, as far as both runs have come."""
        return self.sameness.identical or self.sameness.position == self.sameness.tokens


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that is running or finished.

    Args:
        field: the field of ``DecodingConfig`` that is varied.
        values: all values to be tried, in order.
        current: the value that was set before.
        alone: the target-only run; ``None`` until it began.
        runs: by value, as far as they have come.
        draft_pass: by value, seconds of drafting for each of the draft's passes, by the clock; none where it made none.
    """

    field: str
    values: tuple[Value, ...]
    current: Value
    alone: DecodeTrace | None = None
    runs: tuple[tuple[Value, DecodeTrace], ...] = ()
    draft_pass: tuple[tuple[Value, float], ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The values that have made a step, in order of ``values``; none before the target-only run has."""
        if self.alone is None or not self.alone.steps:
            return ()
        reference, done = summarise([self.alone]), {value: run for value, run in self.runs if run.steps}
        points = []
        for value in self.values:
            if value in done:
                own, same = summarise([done[value]]), compare(self.alone, done[value])
                points.append(Point(value, own, speedup(reference, own), same))
        return tuple(points)

    @property
    def finished(self) -> int:
        """Values whose run came to its end."""
        return sum(run.finish_reason != "stopped" for _, run in self.runs)
