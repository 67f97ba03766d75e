"""What each guess of a step was made from, in words: it depends on the drafter, and of some on the guess's depth."""

from __future__ import annotations

from typing import Final

from specllava.core.trace import DecodeTrace, StepTrace

READING: Final = "the draft's own reading of the text"
STATE: Final = "the large model's own state at its last word"
GUESSED_STATE: Final = "the draft's guess of such a state"
TEXT: Final = "the text so far"


def guess_sources(trace: DecodeTrace, step: StepTrace) -> list[str]:
    """Return what each guess was made from, by its id; "" for root and bonus token, and of a drafter not known here.

    A draft that reads the target's hidden states has only the root's from the target: what it guesses below its own
    guesses it makes from states of its own (EAGLE, arXiv 2401.15077, section 4.1).
    """
    parents = [*step.tree.parents[1:], *(guess.parent for guess in step.pruned)]
    told = [_source(trace, below_root=parent == 0) for parent in parents]
    return ["", *told[: step.tree.drafted], "", *told[step.tree.drafted :]]


def _source(trace: DecodeTrace, below_root: bool) -> str:
    if trace.drafter is not None:
        return ""
    if trace.config.drafter == "prompt-lookup":
        return TEXT
    if trace.setting.draft_reads is None:
        return READING
    return STATE if below_root else GUESSED_STATE
