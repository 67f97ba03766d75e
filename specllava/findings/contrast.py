"""One answer of one target, with guesses from drafts that know more or less."""

from __future__ import annotations

from dataclasses import dataclass

from specllava.findings.reading import Reading
from specllava.metrics import Comparison, compare, summarise
from specllava.trace import DecodeTrace


@dataclass(frozen=True, slots=True)
class Side:
    """One draft, or one thing that it was shown.

    Args:
        name: such as ``a blank picture`` or ``before``.
        trace: the answer, decoded with its guesses.
        reading: the draft on the first side's answer, so that all sides are read on the same words.
    """

    name: str
    trace: DecodeTrace
    reading: Reading

    @property
    def tau(self) -> float:
        """Tokens per target pass."""
        return summarise([self.trace]).tau


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """The trees that all sides grow at one position of the answer.

    Args:
        position: of the token that the trees guess first, counted from 0.
        traces: one per side, in order, with a first step that starts there.
    """

    position: int
    traces: tuple[DecodeTrace, ...]


@dataclass(frozen=True, slots=True)
class Contrast:
    """A comparison that is running or finished; the first side gives the words.

    Args:
        names: of all sides to come.
        sides: those that are there.
        comparisons: where to look closely, the most telling place first; only once every side is there.
    """

    names: tuple[str, ...]
    sides: tuple[Side, ...] = ()
    comparisons: tuple[TreeComparison, ...] = ()

    def __post_init__(self) -> None:
        for side in self.sides:
            if len(side.reading) != len(self.sides[0].trace.token_ids):
                raise ValueError(
                    f"{side.name}: a reading of {len(side.reading)} tokens"
                    f" for an answer of {len(self.sides[0].trace.token_ids)}"
                )

    @property
    def sameness(self) -> tuple[Comparison, ...]:
        """The answer of every side against the first side's."""
        return tuple(compare(self.sides[0].trace, side.trace) for side in self.sides)
