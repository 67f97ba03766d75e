"""The machine that a benchmark ran on: hardware, load, clocks and copy rate."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from specllava.runtime.timing import now

COPY_BYTES: Final = {"cpu": 2**28, "cuda": 2**31}  # far more than caches hold
COPIES: Final = 5
GPU_FACTS: Final = ("name", "driver_version", "power.limit")
GPU_CONDITIONS: Final = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


def machine_of(device: torch.device, command: str) -> dict[str, Any]:
    """Return facts of the machine for a report, its present conditions as ``before``."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "commit": commit(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "copy_gb_per_second": copy_rate(device),
    }
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        found |= _query_gpu(device, GPU_FACTS)
    return {**found, "before": conditions(device)}


def conditions(device: torch.device) -> dict[str, Any]:
    """Return load average and clocks as they are now; what cannot be read is ``None``."""
    frequency = psutil.cpu_freq()
    found: dict[str, Any] = {
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "cpu_mhz": frequency.current if frequency else None,
    }
    return found | (_query_gpu(device, GPU_CONDITIONS) if device.type == "cuda" else {})


def copy_rate(device: torch.device) -> float | None:
    """Measure how many gigabytes a large copy reads and writes per second, by the quickest of several.

    Returns:
        ``None`` where there is no memory for it.
    """
    size = COPY_BYTES.get(device.type, COPY_BYTES["cpu"])
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if 3 * size > free:
        return None
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    goal = torch.empty_like(source)
    quickest = float("inf")
    for _ in range(COPIES):
        started = now(device)
        goal.copy_(source)
        quickest = min(quickest, now(device) - started)
    return 2e-9 * size / quickest


def commit() -> str | None:
    """Return the commit that is checked out, with ``+`` where files were changed; ``None`` outside of a checkout."""
    here = Path(__file__).parent
    head = _command_output("git", "-C", str(here), "rev-parse", "--short=12", "HEAD")
    changed = _command_output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no")
    return head and head + ("+" if changed else "")


def _cpu_name() -> str:
    """Return the processor's name from Linux, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _query_gpu(device: torch.device, facts: tuple[str, ...]) -> dict[str, str | None]:
    """Return facts of a GPU from its driver; each is ``None`` where it does not answer."""
    index = str(device.index or 0)
    output = _command_output("nvidia-smi", f"--query-gpu={','.join(facts)}", "--format=csv,noheader", f"--id={index}")
    values = [value.strip() for value in output.split(",")] if output else []
    names = (f"gpu_{fact.replace('.', '_')}" for fact in facts)
    return dict(zip(names, values if len(values) == len(facts) else [None] * len(facts), strict=True))


def _command_output(*command: str) -> str | None:
    """Return the output of a program; ``None`` if there is none or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
