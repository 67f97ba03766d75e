"""Times of passes over more and more tokens: *t(n)* and the cost of a draft level."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from specllava.bench.measured import RawPass
from specllava.bench.timed_run import Model
from specllava.pair import Pair
from specllava.runtime.timing import CONTEXT, engine_of, pass_seconds

WIDTHS: Final[Mapping[Model, tuple[int, ...]]] = MappingProxyType(
    {"target": (1, 2, 4, 8, 16, 32), "draft": (1, 2, 4, 8)}
)
REPEATS: Final = 5


def raw_passes(pair: Pair, contexts: Sequence[int]) -> tuple[RawPass, ...]:
    """Return the median seconds of passes of both models after each number of columns."""
    return tuple(
        RawPass(model, width, context, seconds)
        for context in dict.fromkeys(contexts)
        for model, row in pass_medians(pair, WIDTHS, REPEATS, context).items()
        for width, seconds in row.items()
    )


def pass_medians(
    pair: Pair, ladders: Mapping[Model, Sequence[int]], repeats: int, context: int = CONTEXT
) -> dict[Model, dict[int, float]]:
    """Return the median seconds of passes of the pair's models by their number of tokens.

    Args:
        ladders: numbers of tokens, by model.
        repeats: times that each is timed.
        context: columns of the KV cache before a pass.
    """
    found = {}
    for name, rows in ladders.items():
        model = pair.target if name == "target" else pair.draft
        if model is not None:
            engine = engine_of(model, context + max(rows), pair.engines)
            taken = pass_seconds([engine], rows, repeats, context)[0]
            found[name] = {count: statistics.median(seconds) for count, seconds in taken.items()}
            pair.engines.give_back([engine])
    return found
