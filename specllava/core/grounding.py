"""Grounding of an answer in its picture: what each token owes to it, measured by image ablation. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from specllava.trace_fields import Count, Many, Probability, Record

MAX_GRID: Final = 32  # tiles a side
Grid = Annotated[int, Field(ge=0, le=MAX_GRID)]


@dataclass(frozen=True, slots=True)
class Grounding(Record):
    """The target's probability of each token of its answer: with the picture, with a grey one, with a part of it grey.

    For the parts a grey square moves over the picture, tile by tile, line by line.

    Args:
        probs: with the picture, one entry per token.
        blank_probs: with a grey picture of the same size.
        blank_choices: the target's likeliest token with the grey picture.
        factor: how many times less likely without the picture a token is that needs it.
        grid: tiles a side of the picture; 0 where no parts were greyed.
        window: tiles a side of the grey square.
        occluded: one row per grounded token, in order: its probability at each place of the square.
    """

    probs: Many[Probability]
    blank_probs: Many[Probability]
    blank_choices: Many[Count]
    factor: Annotated[float, Field(ge=1.0)]
    grid: Grid = 0
    window: Grid = 0
    occluded: Many[Many[Probability]] = ()

    @property
    def grounded(self) -> tuple[int, ...]:
        """Positions of the tokens that need the picture: by ``factor`` less likely without it."""
        pairs = zip(self.probs, self.blank_probs, strict=True)
        return tuple(at for at, (seen, blank) in enumerate(pairs) if 0 < seen >= self.factor * blank)

    @property
    def places(self) -> int:
        """Places of the grey square along a side of the picture; 0 where no parts were greyed."""
        return self.grid - self.window + 1 if self.grid else 0

    def __post_init__(self) -> None:
        if not len(self.probs) == len(self.blank_probs) == len(self.blank_choices):
            raise ValueError(
                "a grounding needs one entry per token in each list:"
                f" {len(self.probs)}, {len(self.blank_probs)} and {len(self.blank_choices)}"
            )
        if (self.grid or self.window) and not 0 < self.window <= self.grid:
            raise ValueError(f"a square of {self.window} tiles a side does not fit a picture of {self.grid}")
        rows, count = len(self.grounded) if self.grid else 0, self.places**2
        if len(self.occluded) != rows or any(len(row) != count for row in self.occluded):
            raise ValueError(f"a grounding needs {count} probabilities for each of {rows} grounded tokens")
