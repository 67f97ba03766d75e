"""Refusals: one line, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def complaint(action: Callable[[], Any]) -> str:
    """The one line of the ValueError that ``action`` must raise."""
    with pytest.raises(ValueError, match=r".") as caught:
        action()
    line = str(caught.value)
    assert "\n" not in line
    assert 10 < len(line) < 300
    return line
