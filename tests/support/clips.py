"""Clips that families are asked about."""

from __future__ import annotations

import torch
from PIL import Image

from specllava.models.media.media import Video


def clip(count: int, sparse: int | None = None, seed: int = 0, slow: float = 1.0) -> Video:
    """Noise of an odd size; every second frame comes a second after the one before, the others half a second.

    Args:
        slow: what these times are multiplied by.
    """
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 45, 62, 3), generator=source, dtype=torch.uint8).numpy()
    frames = tuple(Image.fromarray(one) for one in pixels)
    return Video(frames, tuple(slow * (0.75 * number + 0.25 * (number % 2)) for number in range(count)), sparse)
