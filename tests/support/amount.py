"""How many cases of a long list are tried: a fixed sample, or all with ``SPECLLAVA_TESTS_ALL=1``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

ALL: Final = bool(os.environ.get("SPECLLAVA_TESTS_ALL"))
T = TypeVar("T")


def sample(cases: Sequence[T], count: int) -> Sequence[T]:
    """Return ``count`` cases spread over the list, or the whole list where all are asked for."""
    return cases if ALL or count >= len(cases) else [cases[at * len(cases) // count] for at in range(count)]
