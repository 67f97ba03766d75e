"""Refusals: one line, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
