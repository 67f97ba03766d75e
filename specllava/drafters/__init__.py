"""Who proposes tokens. A drafter opens a session per run; a session grows trees and remembers what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specllava.config import DecodingConfig
from specllava.tree import DraftTree


class DraftSession(Protocol):
    """Drafting for one answer. ``propose`` and ``keep`` take turns."""

    def propose(self, root: int, depth: int, config: DecodingConfig) -> DraftTree:
        """A tree of guesses below ``root``, the last emitted token, at most ``depth`` deep."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """The target kept these nodes of the last tree, the root first."""
        ...
