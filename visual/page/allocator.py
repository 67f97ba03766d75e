"""Settings of the C library's allocator for a process that serves for days."""

from __future__ import annotations

import ctypes
import os
from typing import Final

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # parameters of mallopt in glibc's malloc.h
SETTINGS: Final = {ARENA_MAX: 2, MMAP_THRESHOLD: 2**20, TRIM_THRESHOLD: 2**20}


def give_back_freed_memory() -> bool:
    """Let glibc give freed memory back to the system; returns whether there is a glibc that was told.

    By itself it keeps an arena for each thread, and raises its bound for what it maps apart to the largest block that
    was ever freed, 32 MB at most: KV caches of many visitors then leave holes that nobody else can use. Measured by
    ``python -m benchmarks.load``.
    """
    if not any(name == "CS_GNU_LIBC_VERSION" and os.confstr(name) for name in os.confstr_names):
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(parameter, value) == 1 for parameter, value in SETTINGS.items())
