"""Peaks of memory that begin anew for every run: allocated by torch on GPUs, else resident, as Linux counts it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch


class PeakMemory:
    """The peak of memory on some GPUs, added up, or of this process without one.

    Args:
        gpus: where models compute; none where they do on the CPU.
    """

    def __init__(self, gpus: Sequence[torch.device]) -> None:
        self._gpus = gpus
        self._known = bool(gpus) or reset_resident_peak(os.getpid())

    @property
    def kind(self) -> str:
        """What it is the peak of, or why there is none."""
        if self._gpus:
            return "allocated on the GPU"
        return "resident memory of the process" if self._known else "none: only Linux can reset it"

    def reset(self) -> None:
        """Begin anew."""
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        if not self._gpus:
            reset_resident_peak(os.getpid())

    def read(self) -> int | None:
        """Return the peak in bytes; ``None`` where it cannot be reset."""
        if self._gpus:
            return sum(torch.cuda.max_memory_allocated(gpu) for gpu in self._gpus)
        return resident_peak(os.getpid()) if self._known else None


def reset_resident_peak(process: int) -> bool:
    """Reset a process's peak of resident memory; return whether the system can."""
    try:
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_peak(process: int) -> int:
    """Return a process's peak of resident memory in bytes, where it can be reset."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
