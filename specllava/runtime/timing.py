"""The clock."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Return wall-clock seconds after all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def now_read() -> float:
    """Return wall-clock seconds where the host has just read what the device computed last.

    Within a step that is so at every mark: guesses and verdict are read, so all work before them is done.
    Keeping a branch leaves two copies to the device, which the next pass follows.
    """
    return time.perf_counter()
