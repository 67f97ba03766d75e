"""Cache of the last results of a slow function of a number, in a plain dictionary, so that its owner can be pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

Made = TypeVar("Made")
MOST: Final = 2  # batches are requested in order: the current window, and the next where one ends


def lru_get(held: dict[int, Made], number: int, make: Callable[[int], Made]) -> Made:
    """Return the result for ``number`` from the cache ``held``; make it if absent, and drop the oldest."""
    if number not in held:
        made = make(number)
        while len(held) >= MOST:
            del held[next(iter(held))]
        held[number] = made
    return held[number]
