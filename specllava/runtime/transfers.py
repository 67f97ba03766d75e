"""Memory on the host and on the device that is copied from one to the other: one upload and one download a pass.

On a GPU the host's side is pinned, so an upload does not wait for the work before it. A tensor made of a Python list,
or one that is not pinned, would. A download waits: it is the only point at which the host does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class Upload:
    """Bytes that the host writes and the device reads.

    Args:
        nbytes: that fit; ``device`` holds them where passes read them, ``host`` is what is written.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._memory = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.host: npt.NDArray[np.uint8] = self._memory.numpy()
        self.device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        """Wait until the last upload has left ``host``, which is long ago where a download came after it."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self, nbytes: int) -> None:
        """Copy the first ``nbytes`` to the device, behind the work that it was given before."""
        self.device[:nbytes].copy_(self._memory[:nbytes], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device.device))


class Download:
    """Rows of float32 numbers that passes write on the device and the host reads.

    Args:
        device: ``[rows, width]``, where passes write.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.device = torch.zeros((rows, width), device=device)
        self._memory = torch.zeros((rows, width), pin_memory=pinned)
        self._host: npt.NDArray[np.float32] = self._memory.numpy()
        self._copied = torch.cuda.Event() if pinned else None

    def fetch(self, rows: slice) -> list[list[float]]:
        """Wait for the device and return these rows."""
        self._memory[rows].copy_(self.device[rows], non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device.device))
            self._copied.synchronize()
        found: list[list[float]] = self._host[rows].tolist()
        return found
