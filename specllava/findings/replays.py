"""Recorded steps without their words: what each took in passes and brought in tokens, priced at any pair's costs.

A step takes the same passes wherever it is decoded, so its seconds elsewhere are a sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from specllava.core.config import one_line
from specllava.core.trace import RunInfo, StepTrace
from specllava.core.trace_fields import Count, Many, Record

MAX_FILE_BYTES: Final = 100_000  # it travels with every page
GUESSES: Final = 20  # of the wider one of the two target passes that a person is asked for

LONGEST_VERIFY, LONGEST_LEVEL = 257, 64  # tokens of a pass: all that a config allows

Width = Annotated[int, Field(ge=1, le=LONGEST_LEVEL)]
Name = Annotated[str, Field(max_length=200)]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one pass by its number of tokens: entry ``n - 1`` is for ``n`` tokens, beyond them a straight line.

    Args:
        verify: of the target; a tree of ``n`` drafted tokens takes ``n + 1``.
        draft: of the draft, for one level.
    """

    verify: tuple[float, ...]
    draft: tuple[float, ...]

    def verify_seconds(self, drafted: int) -> float:
        """Return the seconds of verifying ``drafted`` tokens."""
        return _at(self.verify, drafted + 1)

    def step_seconds(self, widths: Iterable[int], drafted: int) -> float:
        """Return the seconds of a step's passes: the draft's, by their tokens, and the target's verification."""
        return math.fsum(_at(self.draft, width) for width in widths) + self.verify_seconds(drafted)


def _at(curve: Sequence[float], tokens: int) -> float:
    if tokens <= len(curve):
        return curve[tokens - 1]
    slope = curve[-1] - curve[-2] if len(curve) > 1 else 0.0
    return curve[-1] + slope * (tokens - len(curve))


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
class Replays(Record):
    """Steps of every rule on the same prompts.

    Args:
        command, date: how and when the steps were recorded.
        prompts: their number; ``what`` describes them.
        rules: by name, all steps of each answer.
    """

    command: Name
    date: Name
    what: Name
    prompts: Count
    setting: RunInfo
    rules: dict[Name, Many[Many[ReplayStep]]]

    def to_json(self) -> bytes:
        """Write them as :meth:`read` reads them."""
        return _ADAPTER.dump_json(self) + b"\n"

    @classmethod
    def read(cls, file: Path) -> Replays:
        """Read a file of recorded steps.

        Raises:
            ValueError: too large, or not such a file; one line that names it.
        """
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{file.name} has {size:,} bytes, and at most {MAX_FILE_BYTES:,} are read")
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{file.name} holds no recorded steps: {one_line(error)}") from error


_ADAPTER: TypeAdapter[Replays] = TypeAdapter(Replays)


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

    @property
    def break_even(self) -> float:
        """Tokens per target pass at which these steps would take as long as the target alone."""
        return self.tau / self.speedup

    def speedup_in_all(self, tokens: int, reading: float, draft_reading: float) -> float:
        """Return the speed-up of an answer of ``tokens`` with the seconds of reading its prompt; the first is read."""
        behind = (tokens - 1) * self.one
        return (reading + behind) / (reading + draft_reading + behind / self.speedup)


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
