"""A benchmark in several processes of ``accelerate launch``, one for each GPU. No torch until one is asked for."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Final, TypeVar

from specllava.bench.measured import Measured, RawPass

Item = TypeVar("Item")
SHARED: Final = {"counters": [], "missing": ["processes that run at once share the counters"]}


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those that share a benchmark.

    Args:
        rank: its number, from 0, which reports.
        count: of them.
        local_rank: its number on this machine, which is that of its GPU.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @classmethod
    def launched(cls) -> Processes:
        """Return the processes of ``accelerate launch`` or a launcher with its variables; one without."""
        rank, count, local = (int(os.environ.get(name) or 0) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, max(1, count), local)

    def device(self, asked: str) -> str:
        """Return the device of this process where ``auto`` is asked for."""
        if asked != "auto" or self.count == 1:
            return asked
        import torch

        return f"cuda:{self.local_rank}" if torch.cuda.is_available() else asked

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this process's share.

        Raises:
            ValueError: there are fewer than processes.
        """
        if len(items) < self.count:
            raise ValueError(f"{self.count} processes share {len(items)} dialogues: ask at least one of each")
        return items[self.rank :: self.count]

    def join(self, measured: Measured) -> Measured | None:
        """Return all processes' measurements to the one that reports, ``None`` to the others."""
        if self.count == 1:
            return measured
        import torch
        from accelerate import PartialState
        from accelerate.utils import gather_object

        PartialState(cpu=not torch.cuda.is_available())  # the processes' group
        parts = gather_object([measured])
        return join_parts(parts) if self.rank == 0 else None


def join_parts(parts: Sequence[Measured]) -> Measured:
    """Join parts into one benchmark, round by round; dialogues are numbered through.

    A lane that failed in one part is left out. All lanes of a prompt ran in one process, so ratios stay those of one
    device; the machine is the first part's. Energy is left out, since its counters are shared.

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
        machine={**first.machine, "processes": len(parts), "energy": SHARED},
        warm_up=min((part.warm_up for part in parts), key=lambda one: one.agreed),
        prompts=tuple(
            replace(asked, dialogue=asked.dialogue + before)
            for part, before in zip(parts, dialogues_before, strict=False)
            for asked in part.prompts
        ),
        runs={
            name: tuple(
                replace(run, joules=None)
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
