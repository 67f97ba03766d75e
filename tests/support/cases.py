"""How many cases of a long list are tried, and the one line in which something is refused before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

ALL: Final = bool(os.environ.get("SPECLLAVA_TESTS_ALL"))
T = TypeVar("T")


def sample(cases: Sequence[T], count: int) -> Sequence[T]:
    """Return ``count`` cases spread over the list, or the whole list where all are asked for."""
    return cases if ALL or count >= len(cases) else [cases[at * len(cases) // count] for at in range(count)]


def complaint(action: Callable[[], Any]) -> str:
    """The one line of the ValueError that ``action`` must raise."""
    line = ""
    try:
        action()
    except ValueError as error:
        line = str(error)
    assert "\n" not in line
    assert 10 < len(line) < 300, "nothing was refused, or not in one line"
    return line
