"""The host's view of pinned memory, which no dispatch of torch sees: it tells when it is used too early."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.emulated.copies import Copies
from benchmarks.emulated.marks import line


class PinnedView(np.ndarray):  # type: ignore[type-arg]
    """Array over pinned memory. What is neither assigned to nor listed is not checked, and holds a late number."""

    copies: Copies | None

    def __array_finalize__(self, parent: Any) -> None:
        self.copies = getattr(parent, "copies", None)

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.copies is not None:
            self.copies.check_write(self[place] if self.ndim else self, line())
        super().__setitem__(place, value)

    def tolist(self) -> Any:
        if self.copies is not None:
            self.copies.check_read(self, line())
        return super().tolist()
