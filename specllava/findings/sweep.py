"""One answer, decoded at several values of one setting."""

from __future__ import annotations

from dataclasses import dataclass

from specllava.metrics import Comparison, Summary, compare, speedup, summarise
from specllava.trace import DecodeTrace

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Point:
    """What one value was worth.

    Args:
        speedup: against the target alone; NaN if nothing was decoded.
        sameness: its tokens against those of the target alone.
    """

    value: Value
    summary: Summary
    speedup: float
    sameness: Comparison


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that is running or finished.

    Args:
        field: the field of ``DecodingConfig`` that is turned.
        values: all values to be tried, in order.
        current: the value that was set before.
        alone: the target-only run; ``None`` until it is there.
        runs: by value, those that are finished.
    """

    field: str
    values: tuple[Value, ...]
    current: Value
    alone: DecodeTrace | None = None
    runs: tuple[tuple[Value, DecodeTrace], ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The values that are finished, in order of ``values``; none before the target-only run is."""
        if self.alone is None:
            return ()
        reference, done = summarise([self.alone]), dict(self.runs)
        return tuple(
            Point(value, own := summarise([done[value]]), speedup(reference, own), compare(self.alone, done[value]))
            for value in self.values
            if value in done
        )
