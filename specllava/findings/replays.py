"""Recorded steps without their words: what each took in passes and brought in tokens, priced at any pair's costs.

A step takes the same passes wherever it is decoded, so its seconds elsewhere are a sum. That holds for the recorded
trees; a rule that goes by costs would grow other ones elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from specllava.core.growth.cost_model import LONGEST_LEVEL, LONGEST_VERIFY, Costs
from specllava.core.trace import StepTrace

GUESSES: Final = 20  # of the wider one of the two target passes that a person is asked for

Width = Annotated[int, Field(ge=1, le=LONGEST_LEVEL)]


class ReplayStep(NamedTuple):
    """A step as counted; in a file it is a list of these three.

    Args:
        widths: tokens that each of the draft's passes read.
        guesses: nodes below the root that the target verified.
    """

    widths: Annotated[tuple[Width, ...], Field(max_length=LONGEST_VERIFY)]
    guesses: Annotated[int, Field(ge=0, lt=LONGEST_VERIFY)]
    emitted: Annotated[int, Field(ge=1, le=LONGEST_VERIFY)]

    @classmethod
    def of(cls, step: StepTrace) -> ReplayStep:
        """Count a step of a trace: its levels are those of which a node was sent, as a trace knows no others."""
        expanded = (e is not None for e in step.tree.entropies)
        widths = Counter(compress(step.tree.depths(), expanded))
        return cls(tuple(widths.values()), step.tree.drafted, len(step.emitted))

    @classmethod
    def counted(cls, step: StepTrace, widths: Sequence[int]) -> ReplayStep:
        """Take a step with the counted widths of its draft's passes, those of which no node was sent included."""
        return cls(tuple(widths), step.tree.drafted, len(step.emitted))


@dataclass(frozen=True, slots=True)
class Priced:
    """Recorded steps at given costs.

    Args:
        passes, tokens: of the target, and emitted.
        seconds: of all passes, prefills apart.
        one: seconds of a target pass over one token, which every token costs the target alone.
    """

    passes: int
    tokens: int
    seconds: float
    one: float

    @property
    def tau(self) -> float:
        """Tokens per target pass."""
        return self.tokens / self.passes

    @property
    def speedup(self) -> float:
        """Seconds of the target alone over those of the steps, while answering."""
        return self.one * self.tokens / self.seconds


def priced(steps: Iterable[ReplayStep], costs: Costs) -> Priced:
    """Add up what the passes of some steps, at least one, would take."""
    passes = tokens = 0
    seconds = 0.0
    for widths, guesses, emitted in steps:
        passes += 1
        tokens += emitted
        seconds += costs.step_seconds(widths, guesses)
    return Priced(passes, tokens, seconds, costs.verify_seconds(0))


def straight_costs(one: float, many: float, level: float) -> Costs:
    """Return the costs between and beyond two target passes, and of levels that cost the same at any width.

    Args:
        one, many: seconds of a target pass over one token, and of one that verifies :data:`GUESSES` guesses.
        level: seconds of one of the draft's passes.
    """
    return Costs((one, one + (many - one) / GUESSES), (level,))
