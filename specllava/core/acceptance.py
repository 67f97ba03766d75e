"""Acceptance by the names of vLLM's statistics, so that figures of several engines compare. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from specllava.core.trace import DecodeTrace


class DraftedStep(NamedTuple):
    """A step that drafted: its guesses, and those of them that were accepted."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of the steps that drafted, of one or more requests.

    Args:
        histogram: number of steps by accepted guesses, from 0.
        draft_tokens: guesses of all steps.
        steps: in their order, where that is known; empty otherwise.
    """

    histogram: tuple[int, ...]
    draft_tokens: int
    steps: tuple[DraftedStep, ...] = ()

    @classmethod
    def of(cls, steps: Iterable[DraftedStep]) -> Acceptance:
        """Count steps in their order."""
        ordered = tuple(steps)
        counts = Counter(step.accepted for step in ordered)
        histogram = tuple(counts[reach] for reach in range(max(counts, default=-1) + 1))
        return cls(histogram, sum(step.drafted for step in ordered), ordered)

    @property
    def num_steps(self) -> int:
        """Passes of the target that checked guesses."""
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """Accepted guesses, without bonus tokens."""
        return sum(reach * steps for reach, steps in enumerate(self.histogram))

    @property
    def mean_length(self) -> float | None:
        """Accepted guesses per step, and the bonus token; ``None`` where nothing was drafted."""
        return 1 + self.accepted / self.num_steps if self.num_steps else None

    @property
    def rate(self) -> float | None:
        """Share of all guesses that were accepted; ``None`` without a guess."""
        return self.accepted / self.draft_tokens if self.draft_tokens else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """For each depth from 1, the share of all steps that accepted a guess there."""
        return tuple(sum(self.histogram[depth:]) / self.num_steps for depth in range(1, len(self.histogram)))

    def as_json(self, steps: bool = False) -> dict[str, Any] | None:
        """Return the object ``metrics.speculative_decoding`` of vLLM's responses; ``None`` where nothing was drafted.

        Args:
            steps: also the counts of every step, as at vLLM's level ``detailed``.
        """
        if not self.num_steps:
            return None
        ordered = {
            "per_step_accepted": [step.accepted for step in self.steps],
            "per_step_drafted": [step.drafted for step in self.steps],
        }
        return {
            "mean_acceptance_length": self.mean_length,
            "draft_acceptance_rate": self.rate,
            "per_position_acceptance_rates": list(self.per_position),
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": self.num_steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.draft_tokens,
        } | (ordered if steps and self.steps else {})


def pool_acceptance(parts: Sequence[Acceptance]) -> Acceptance:
    """Add up the counts of several requests; their order is no longer known."""
    columns = zip_longest(*(part.histogram for part in parts), fillvalue=0)
    return Acceptance(tuple(sum(column) for column in columns), sum(part.draft_tokens for part in parts))


def trace_acceptance(traces: Iterable[DecodeTrace]) -> Acceptance:
    """Count the steps of one lane that drafted; tokens after an answer's end are not counted, unlike in vLLM."""
    steps = (step for trace in traces for step in trace.steps)
    return Acceptance.of(
        DraftedStep(step.tree.drafted, len(step.emitted_nodes)) for step in steps if step.tree.drafted
    )
