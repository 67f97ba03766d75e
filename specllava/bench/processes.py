"""A benchmark in several processes of ``accelerate launch``, one for each GPU. No torch until one is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from specllava.bench.joined import joined
from specllava.bench.measured import Measured

Item = TypeVar("Item")


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
        return joined(parts) if self.rank == 0 else None
