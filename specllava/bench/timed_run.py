"""One run of one lane on one prompt: its tokens, passes and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specllava.core.trace import Prefill, StepTrace
from specllava.core.trace_fields import Count, Joules, Many, Record, Seconds

Model = Literal["target", "draft"]


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


class PassShape(NamedTuple):
    """A pass of ``width`` tokens after ``context`` columns of the KV cache."""

    model: Model
    width: int
    context: int


@dataclass(frozen=True, slots=True)
class TimedRun(Record):
    """One run.

    Args:
        token_ids: of the answer up to its end.
        first_tokens: those of the prefill; assisted generation of ``transformers`` verifies
            its first guesses there.
        prompt_tokens, draft_prompt_tokens: that target and draft read.
        vision_seconds: of the vision towers.
        read_seconds: of reading the prompt, with both models.
        draft_read_seconds: the draft's part of that, where it is known.
        bare_seconds: that the passes of the steps took once more, bare and in their order; ``None`` if not timed.
        steps: steps after the first tokens.
        wall_seconds: of the whole run, all bookkeeping in it.
        joules: of the whole run, the towers' passes in it; ``None`` where nothing counts them.
        peak_bytes: of memory, see :class:`~specllava.bench.peak_memory.PeakMemory`; ``None`` where it is not known.
    """

    token_ids: Many[Count]
    first_tokens: Count
    prompt_tokens: Count
    draft_prompt_tokens: Count
    vision_seconds: Seconds
    read_seconds: Seconds
    steps: Many[TimedStep]
    wall_seconds: Seconds
    draft_read_seconds: Seconds = 0.0
    bare_seconds: Seconds | None = None
    joules: Joules | None = None
    peak_bytes: Count | None = None

    @property
    def step_tokens(self) -> int:
        """Tokens of the steps."""
        return len(self.token_ids) - self.first_tokens

    @property
    def decode_seconds(self) -> float:
        """Seconds of the steps."""
        return math.fsum(step.seconds for step in self.steps)

    def passes(self) -> Iterator[list[PassShape]]:
        """Yield the passes of each step in their order, the target's last; the draft's first one ends with the root."""
        emitted = self.first_tokens
        for step in self.steps:
            shapes, context = list[PassShape](), self.draft_prompt_tokens + emitted - sum(step.draft_widths[:1])
            for width in step.draft_widths:
                shapes.append(PassShape("draft", width, max(0, context)))
                context += width
            yield [*shapes, PassShape("target", step.target_width, self.prompt_tokens + emitted - 1)]
            emitted += step.emitted

    @classmethod
    def of_events(
        cls,
        prefill: Prefill,
        steps: Sequence[StepTrace],
        draft_widths: Sequence[Sequence[int]],
        draft_prompt_tokens: int,
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
            prompt_tokens=prefill.prompt_tokens,
            draft_prompt_tokens=draft_prompt_tokens,
            vision_seconds=prefill.vision_seconds,
            read_seconds=prefill.target_seconds + prefill.draft_seconds,
            steps=timed,
            wall_seconds=wall_seconds,
            draft_read_seconds=prefill.draft_seconds,
        )
