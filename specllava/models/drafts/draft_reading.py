"""Formats of drafts that read the target's states, and how to read one where its files leave it open. No torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

DraftFormat = Literal["eagle", "msd", "vispec", "eagle3"]


@dataclass(frozen=True, slots=True)
class DraftReading:
    """What a user or a preset knows of a published draft; ``None``: as its files have it.

    Args:
        draft_format: where its keys leave it open.
        draft_state_layers: hidden states of the target that it was trained on, numbered as transformers does.
        draft_rope_theta: base of the rotary embeddings that it was trained with.
    """

    draft_format: DraftFormat | None = None
    draft_state_layers: tuple[int, ...] | None = None
    draft_rope_theta: float | None = None

    def over(self, known: DraftReading) -> DraftReading:
        """Return this reading, completed by ``known`` where it is silent."""
        pairs = zip(astuple(self), astuple(known), strict=True)
        return DraftReading(*(other if own is None else own for own, other in pairs))

    @property
    def options(self) -> str:
        """The options of the command line that ask for it."""
        layers = self.draft_state_layers
        given = {
            "--draft-format": self.draft_format,
            "--draft-state-layers": None if layers is None else " ".join(map(str, layers)),
            "--draft-rope-theta": None if self.draft_rope_theta is None else f"{self.draft_rope_theta:g}",
        }
        return " ".join(f"{name} {value}" for name, value in given.items() if value is not None)

    @property
    def suffix(self) -> str:
        """Suffix of the draft's name: how its files are read."""
        layers, theta = self.draft_state_layers, self.draft_rope_theta
        parts = [] if layers is None else [f"states {' '.join(map(str, layers))}"]
        parts += [] if theta is None else [f"rope base {theta:g}"]
        return f" ({', '.join(parts)})" if parts else ""
