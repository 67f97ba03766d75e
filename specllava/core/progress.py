"""Two lanes at a moment of their own clocks, moved on step by step, so that a race is summed up once. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from specllava.metrics import Comparison, RunTotals, compare, pool_totals, prefill_totals, step_totals, summarise
from specllava.trace import DecodeTrace

CLOCK_ERROR = 1e-9  # seconds that sums of the same steps may differ by


@dataclass(slots=True)
class LaneProgress:
    """A lane at a moment of its own clock, which includes the prefill; its trace may grow between two moments."""

    summary: RunTotals = field(default_factory=lambda: summarise([]))
    token_ids: list[int] = field(default_factory=list)

    def advance(self, trace: DecodeTrace, seconds: float) -> None:
        """Count the steps that the lane had finished at ``seconds``, no less than before."""
        if not self.token_ids:
            self.token_ids.append(trace.prefill.first_token)
            self.summary = prefill_totals(trace.prefill)
        for step in trace.steps[self.summary.target_passes :]:
            done = self.summary.prefill_seconds + self.summary.decode_seconds + step.seconds.total
            if done > seconds + CLOCK_ERROR:
                break
            self.token_ids.extend(step.emitted)
            self.summary = pool_totals([self.summary, step_totals(step)])


@dataclass(slots=True)
class RaceProgress:
    """Two lanes at the same moment of their own clocks, and how far their tokens are the same."""

    reference: LaneProgress = field(default_factory=LaneProgress)
    candidate: LaneProgress = field(default_factory=LaneProgress)
    comparison: Comparison = field(default_factory=lambda: Comparison(True, 0))

    def advance(self, reference: DecodeTrace, candidate: DecodeTrace, seconds: float) -> None:
        """Count what both lanes had done at ``seconds``, no less than before."""
        self.reference.advance(reference, seconds)
        self.candidate.advance(candidate, seconds)
        ours, theirs = self.reference.token_ids, self.candidate.token_ids
        same, shared = self.comparison.tokens, min(len(ours), len(theirs))
        if self.comparison.margin is not None:
            return  # they have parted
        while same < shared and ours[same] == theirs[same]:
            same += 1
        if same < shared:
            self.comparison = compare(reference, candidate)
        else:
            identical = len(ours) == len(theirs)
            self.comparison = Comparison(identical, same, None if identical else same)
