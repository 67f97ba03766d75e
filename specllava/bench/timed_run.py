"""One run of one lane on one prompt: its tokens, passes and seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specllava.trace import Prefill, StepTrace
from specllava.trace_fields import Count, Many, Record, Seconds


@dataclass(frozen=True, slots=True)
class TimedStep(Record):
    """One step: a pass of the target, and the draft's passes before it.

    Args:
        emitted: tokens, at least one; accepted guesses among them are ``accepted``.
        target_width: tokens of the target's pass.
        draft_widths: tokens of each of the draft's passes.
        draft, verify, keep: seconds; another library's step is timed as a whole, which is ``verify``.
    """

    emitted: Count
    accepted: Count
    target_width: Count
    draft_widths: Many[Count] = ()
    draft: Seconds = 0.0
    verify: Seconds = 0.0
    keep: Seconds = 0.0

    @property
    def seconds(self) -> float:
        return self.draft + self.verify + self.keep


@dataclass(frozen=True, slots=True)
class TimedRun(Record):
    """One run.

    Args:
        token_ids: of the answer up to its end.
        first_tokens: those of the prefill; assisted generation of ``transformers`` verifies
            its first guesses there.
        vision_seconds: of the vision towers.
        read_seconds: of reading the prompt, with both models.
        steps: steps after the first tokens.
        wall_seconds: of the whole run, all bookkeeping in it.
    """

    token_ids: Many[Count]
    first_tokens: Count
    vision_seconds: Seconds
    read_seconds: Seconds
    steps: Many[TimedStep]
    wall_seconds: Seconds

    @property
    def step_tokens(self) -> int:
        """Tokens of the steps."""
        return len(self.token_ids) - self.first_tokens

    @property
    def decode_seconds(self) -> float:
        """Seconds of the steps."""
        return math.fsum(step.seconds for step in self.steps)

    @classmethod
    def of_events(
        cls,
        prefill: Prefill,
        steps: Sequence[StepTrace],
        draft_widths: Sequence[Sequence[int]],
        wall_seconds: float,
    ) -> TimedRun:
        """Make it of the events of this project's own loop.

        Args:
            draft_widths: for each step the tokens of each of the draft's passes.
        """
        timed = tuple(
            TimedStep(
                emitted=len(step.emitted),
                accepted=len(step.emitted_nodes),
                target_width=len(step.tree),
                draft_widths=tuple(widths),
                draft=step.seconds.draft,
                verify=step.seconds.verify,
                keep=step.seconds.keep,
            )
            for step, widths in zip(steps, draft_widths, strict=True)
        )
        return cls(
            token_ids=(prefill.first_token, *(token for step in steps for token in step.emitted)),
            first_tokens=1,
            vision_seconds=prefill.vision_seconds,
            read_seconds=prefill.target_seconds + prefill.draft_seconds,
            steps=timed,
            wall_seconds=wall_seconds,
        )
