"""Times of passes over more and more tokens."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from benchmarks.shared.pass_seconds import CONTEXT, engine_of, pass_seconds
from specllava.pair import Pair

Model = Literal["target", "draft"]


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
