"""The last results of a slow function of a number, held in a plain dictionary, so that their owner can be pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

Made = TypeVar("Made")
MOST: Final = 2  # batches are asked for in order: the present stretch, and the next where one ends


def recent(held: dict[int, Made], number: int, make: Callable[[int], Made]) -> Made:
    """The result for ``number``: the one in ``held``, else one that is made and put there; the oldest goes for it."""
    if number not in held:
        made = make(number)
        while len(held) >= MOST:
            del held[next(iter(held))]
        held[number] = made
    return held[number]
