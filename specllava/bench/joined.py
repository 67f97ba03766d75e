"""One benchmark of several parts that processes measured side by side, each on its own share of the dialogues."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

from specllava.bench.measured import Measured, RawPass


def joined(parts: Sequence[Measured]) -> Measured:
    """Join parts into one benchmark, round by round; dialogues are numbered through.

    A lane that failed in one part is left out. All lanes of a prompt ran in one process, so ratios stay those of one
    device; the machine told is the first part's.

    Args:
        parts: of the same lanes, rounds and options, at least one, each with at least one prompt.
    """
    first, rounds = parts[0], min(part.rounds for part in parts)
    names = [name for name in first.runs if all(name in part.runs for part in parts)]
    prompts_before = [0, *accumulate(len(part.prompts) for part in parts)]
    dialogues_before = [0, *accumulate(1 + max(asked.dialogue for asked in part.prompts) for part in parts)]
    return replace(
        first,
        rounds=rounds,
        machine={**first.machine, "processes": len(parts)},
        warm_up=min((part.warm_up for part in parts), key=lambda one: one.agreed),
        prompts=tuple(
            replace(asked, dialogue=asked.dialogue + before)
            for part, before in zip(parts, dialogues_before, strict=False)
            for asked in part.prompts
        ),
        runs={
            name: tuple(
                run
                for number in range(rounds)
                for part in parts
                for run in part.runs[name][number * len(part.prompts) : (number + 1) * len(part.prompts)]
            )
            for name in names
        },
        margins=tuple(
            (prompt + before, position, margin)
            for part, before in zip(parts, prompts_before, strict=False)
            for prompt, position, margin in part.margins
        ),
        failures=dict(chain.from_iterable((part.failures or {}).items() for part in parts)),
        raw_passes=_mean_passes(parts),
    )


def _mean_passes(parts: Sequence[Measured]) -> tuple[RawPass, ...]:
    """Return the mean of each pass over the parts that timed it."""
    taken: defaultdict[tuple[str, int, int], list[RawPass]] = defaultdict(list)
    for one in chain.from_iterable(part.raw_passes for part in parts):
        taken[one.model, one.width, one.context].append(one)
    return tuple(
        replace(each[0], seconds=statistics.fmean(one.seconds for one in each)) for _, each in sorted(taken.items())
    )
