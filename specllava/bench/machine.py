"""The machine that a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import torch

GPU_FACTS: Final = ("name", "driver_version", "power.limit")


def machine_of(device: torch.device, command: str) -> dict[str, Any]:
    """Return facts of the machine for a report."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "commit": commit(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        found |= _query_gpu(device, GPU_FACTS)
    return found


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
