"""Which words of an answer need the picture, and where in it, as ``static/grounding.js`` shows them."""

from __future__ import annotations

from itertools import product
from statistics import fmean

from specllava.trace import Grounding
from specllava.trace import DecodeTrace
from visual.figures.labels import token_label


def grounding_of(trace: DecodeTrace) -> dict[str, object] | None:
    """Return the ids of the answer and an entry for each grounded token; ``None`` where nothing was measured.

    Of a token, ``seen`` and ``blank`` are its probability with the picture and with a grey one. ``instead`` is the word
    that the target finds likeliest then, ``None`` where it is the same. ``lost`` has, for each tile of the picture, the
    share of its probability that the token loses, in percent: the mean of all places of the grey square over the tile.
    """
    grounding = trace.grounding
    if grounding is None:
        return None
    words = []
    for row, at in enumerate(grounding.grounded):
        choice = grounding.blank_choices[at]
        words.append({
            "at": at, "seen": grounding.probs[at], "blank": grounding.blank_probs[at],
            "instead": None if choice == trace.token_ids[at] else token_label(trace, choice),
            "lost": _lost_by_tile(grounding, row) if grounding.grid else [],
        })  # fmt: skip
    return {"ids": trace.token_ids, "factor": grounding.factor, "words": words}


def _lost_by_tile(grounding: Grounding, row: int) -> list[int]:
    seen, places, window = grounding.probs[grounding.grounded[row]], grounding.places, grounding.window
    lost = [100 * max(0.0, 1 - prob / seen) for prob in grounding.occluded[row]]

    def over(tile: int) -> range:
        return range(max(0, tile - window + 1), min(places, tile + 1))

    return [
        round(fmean(lost[down * places + across] for down, across in product(over(line), over(column))))
        for line, column in product(range(grounding.grid), repeat=2)
    ]
