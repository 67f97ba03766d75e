"""Memory that is free on a device."""

from __future__ import annotations

import psutil
import torch


def free_bytes(device: torch.device, spread: bool) -> int:
    """Return the bytes free on a device; with ``spread`` those of all GPUs and of the machine together."""
    here = int(psutil.virtual_memory().available)
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else here
