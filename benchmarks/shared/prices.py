"""Prices of passes, in target passes over one token: stated where nothing is timed, or measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from transformers import PreTrainedModel

from specllava.findings.replays import GUESSES
from specllava.runtime.timing import CONTEXT, engine_of, pass_seconds

LEVEL: Final = 0.1  # a pass of the draft
GUESS: Final = 0.01  # one more guess in a target pass
WIDTHS: Final = (1, GUESSES + 1)  # tokens of timed passes
Seconds = Mapping[int, Sequence[float]]  # of passes, by their number of tokens


@dataclass(frozen=True, slots=True)
class Price:
    """What passes cost, in target passes over one token: one of the draft, and one more guess."""

    level: float
    guess: float

    @classmethod
    def measured(cls, target: Seconds, draft: Seconds) -> Price:
        """Return the price by passes of both models, see :func:`time_passes`."""
        one = sum(target[1])
        return cls(sum(draft[1]) / one, (sum(target[GUESSES + 1]) / one - 1) / GUESSES)


def time_passes(models: Sequence[PreTrainedModel], repeats: int) -> list[dict[int, list[float]]]:
    """Time passes of models in turn, by their number of tokens: one, and one with :data:`GUESSES` guesses."""
    return pass_seconds([engine_of(model, CONTEXT + max(WIDTHS)) for model in models], WIDTHS, repeats)
