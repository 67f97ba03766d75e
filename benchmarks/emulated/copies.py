"""Copies between pinned memory and the device, which end when the host waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

LATE = -77  # what stands in pinned memory until a download to it has ended


class HazardError(AssertionError):
    """Error of what a GPU would do without a word, and wrongly."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy under way.

    Args:
        host: its memory of the host.
        content: that a download brings; ``None`` of an upload.
    """

    host: Tensor
    array: npt.NDArray[Any]
    content: Tensor | None
    line: str


@dataclass(slots=True)
class Copies:
    """Copies that the host has not waited for, in the order in which the device makes them.

    Args:
        begun, ended: how many there were.
    """

    begun: int = 0
    ended: int = 0
    _under_way: list[Copy] = field(default_factory=list)

    def begin(self, copy: Copy) -> None:
        self._under_way.append(copy)
        self.begun += 1
        if copy.content is not None:
            copy.host.fill_(LATE)

    def finish(self, count: int | None = None) -> None:
        """Wait for the first ``count`` copies that there ever were, for all by default."""
        over = (self.begun if count is None else count) - self.ended
        for copy in self._under_way[: max(0, over)]:
            if copy.content is not None:
                copy.host.copy_(copy.content)
            self.ended += 1
        del self._under_way[: max(0, over)]

    def check_read(self, array: npt.NDArray[Any], line: str) -> None:
        """Refuse to read memory that a download is still to write.

        Raises:
            HazardError: it is.
        """
        for copy in self._under_way:
            if copy.content is not None and np.may_share_memory(copy.array, array):
                raise HazardError(f"{line} reads pinned memory before the copy of {copy.line} was waited for")

    def check_write(self, array: npt.NDArray[Any], line: str) -> None:
        """Refuse to write memory that a copy still reads or writes.

        Raises:
            HazardError: one does.
        """
        for copy in self._under_way:
            if np.may_share_memory(copy.array, array):
                raise HazardError(f"{line} rewrites pinned memory before the copy of {copy.line} was waited for")
