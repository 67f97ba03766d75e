"""Memory that is free on a device."""

from __future__ import annotations

import psutil
import torch


def free_bytes(place: torch.device, spread: bool) -> int:
    """Return the bytes free on a device; with ``spread`` those of all GPUs and of the machine together."""
    here = int(psutil.virtual_memory().available)
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else here
