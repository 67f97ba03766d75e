"""How many runs an address may begin in a minute."""

from __future__ import annotations

import math
import time
from collections import deque
from threading import Lock
from typing import Final

WINDOW: Final = 60.0  # seconds


class TooManyRuns(ValueError):
    """Error of an address that begins more runs than it may; ``wait`` is how many seconds until it may again."""

    def __init__(self, what: str, most: int, wait: int) -> None:
        super().__init__(
            f"{most:,} {what} came from your address within a minute, the most that are allowed:"
            f" try again in {wait} second{'' if wait == 1 else 's'}"
        )
        self.wait = wait


class RunRate:
    """Runs that addresses began within the last minute. Handlers share it across threads.

    Args:
        what: is counted, in a refusal.
        most: of each address.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._begun: dict[str, deque[float]] = {}
        self._lock = Lock()

    def begin(self, address: str) -> None:
        """Count a run of an address.

        Raises:
            TooManyRuns: it has begun as many as it may; this one does not count.
        """
        now = time.monotonic()
        with self._lock:
            self._forget(now - WINDOW)
            begun = self._begun.setdefault(address, deque())
            if len(begun) >= self._most:
                raise TooManyRuns(self._what, self._most, math.ceil(begun[0] + WINDOW - now))
            begun.append(now)

    def _forget(self, before: float) -> None:
        """Forget runs of longer ago, and addresses of which none is left."""
        for address, begun in list(self._begun.items()):
            while begun and begun[0] <= before:
                begun.popleft()
            if not begun:
                del self._begun[address]
