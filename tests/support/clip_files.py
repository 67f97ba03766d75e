"""Short video files, written by PyAV."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

COUNT, RATE, SIZE = 20, 10, (64, 48)


def write_clip(path: Path, codec: str, pixels: str, count: int = COUNT, size: tuple[int, int] = SIZE) -> Path:
    """Frames of one shade of grey each, which says what number it is."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        for number in range(count):
            shade = np.full((size[1], size[0], 3), 12 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade, "rgb24")))
        container.mux(stream.encode())
    return path
