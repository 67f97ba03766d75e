"""Seconds of passes of any size, from those that were timed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence

from specllava.bench.measured import RawPass
from specllava.bench.timed_run import TimedRun

Price = Callable[[str, int, int], float]  # model, width and context of a pass to seconds


class PassPrices:
    """Seconds of passes by those that were timed: straight lines between widths, and between contexts."""

    def __init__(self, passes: Sequence[RawPass]) -> None:
        table: defaultdict[str, defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for one in passes:
            table[one.model][one.context][one.width] = one.seconds
        self._table = {
            model: {context: dict(sorted(rows.items())) for context, rows in contexts.items()}
            for model, contexts in table.items()
        }

    def seconds(self, model: str, width: int, context: int) -> float:
        """Return the seconds of a pass of ``width`` tokens after ``context`` columns."""
        columns = sorted(self._table[model])
        return _between(columns, [self._at_width(model, column, width) for column in columns], context)

    def of_run(self, run: TimedRun, price: Price | None = None) -> float:
        """Return the seconds of all passes of the steps of a run, at other prices than the measured ones if given."""
        price = price or self.seconds
        return math.fsum(price(*shape) for shapes in run.passes() for shape in shapes)

    def alone(self, run: TimedRun) -> float:
        """Return the seconds of the target alone for the tokens of a run's steps."""
        columns = run.prompt_tokens + run.first_tokens - 1
        return math.fsum(self.seconds("target", 1, columns + number) for number in range(run.step_tokens))

    def _at_width(self, model: str, column: int, width: int) -> float:
        rows = self._table[model][column]
        return _between(list(rows), list(rows.values()), width)


def _between(points: Sequence[int], values: Sequence[float], at: int) -> float:
    """Read a line through points, extended at both ends."""
    if len(points) == 1:
        return values[0]
    right = min(max(bisect_left(points, at), 1), len(points) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (points[right] - points[left])
    return values[left] + slope * (at - points[left])
