"""The lanes that the GPU path is measured with, the picture and question that they answer, and the machine."""

from __future__ import annotations

import os
import platform

import torch
from PIL import Image

from specllava.core.config import DecodingConfig
from specllava.core.growth.rules.topk import eagle2_tree

DRAFT_ROWS = (1, 2, 4, 8, 16)
QUESTION = "Describe this image in detail."
PICTURE = Image.new("RGB", (640, 480), "teal")
LONGEST = 128  # tokens of an answer whose end does not cut its trees short
ALONE = "nobody drafts"
LANES = {
    ALONE: DecodingConfig(drafter="none", max_new_tokens=LONGEST),
    "chain": DecodingConfig(rule="chain", depth=5, min_log_prob=-50.0, max_new_tokens=LONGEST),
    "top 10, EAGLE-2": DecodingConfig(**eagle2_tree(7, 10, 60), max_new_tokens=LONGEST),
}


def hardware(device: torch.device) -> dict[str, str | int | None]:
    """What the trace's setting does not say of a machine."""
    found: dict[str, str | int | None] = {"system": platform.platform(), "cores": os.cpu_count()}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found |= {"gpu": gpu.name, "gpu_memory": gpu.total_memory, "cuda": torch.version.cuda}
    return found
