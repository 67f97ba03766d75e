"""Processes for what strangers hand over: they get no variable but paths, and bound themselves. Not torch."""

from __future__ import annotations

import math
import os
import sys
from typing import Final

PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")  # variables by which an interpreter finds its libraries


def own_environment() -> dict[str, str]:
    """Return the variables of such a process: what this one imports, it can import too."""
    own = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    return own | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def bound(memory: int, seconds: float, output: int) -> None:
    """Bound this process for good, where the system can: it is ended beyond.

    Args:
        memory: bytes of address space.
        seconds: of processor time.
        output: bytes of a file that it writes.
    """
    if os.name != "posix":
        return
    import resource

    for kind, most in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, math.ceil(seconds)), (resource.RLIMIT_FSIZE, output),
        (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        *_, granted = resource.getrlimit(kind)
        own = most if granted == resource.RLIM_INFINITY else min(most, granted)
        resource.setrlimit(kind, (own, own))
