"""Counters of energy: RAPL of the processors, NVML of a GPU."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

POWERCAP: Final = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of energy.

    Args:
        name: of what it counts.
        joules: reads it.
        span: joules after which it begins at 0 again.
    """

    name: str
    joules: Callable[[], float]
    span: float = math.inf


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """All counters that can be read here, and why others cannot."""

    counters: tuple[Counter, ...] = ()
    missing: tuple[str, ...] = ()

    def read(self) -> tuple[float, ...]:
        """Return the joules of every counter."""
        return tuple(counter.joules() for counter in self.counters)

    def since(self, before: Sequence[float]) -> float | None:
        """Return the joules that all counters advanced by since :meth:`read`; ``None`` without a counter.

        A counter may have begun again once in between.
        """
        if not self.counters:
            return None
        spent = zip(self.counters, before, self.read(), strict=True)
        return math.fsum(after - begun + (counter.span if after < begun else 0.0) for counter, begun, after in spent)

    def as_json(self) -> dict[str, list[str]]:
        """Return the names of the counters, and the reasons of those that are missing."""
        return {"counters": [counter.name for counter in self.counters], "missing": list(self.missing)}


def energy_meter(gpus: Sequence[torch.device], powercap: Path = POWERCAP) -> EnergyMeter:
    """Return a meter of the processors and of some GPUs."""
    sources = {"processors": partial(rapl_counters, powercap)} | {str(gpu): partial(gpu_counters, gpu) for gpu in gpus}
    counters, missing = list[Counter](), list[str]()
    for name, source in sources.items():
        try:
            counters += source()
        except (OSError, ValueError) as error:
            missing.append(f"{name}: {error}")
    return EnergyMeter(tuple(counters), tuple(missing))


def rapl_counters(powercap: Path) -> list[Counter]:
    """Return a counter for each processor package and each package's memory.

    Cores and graphics are part of their package, and a package is part of the platform (psys). So these are left out.

    Raises:
        OSError: there is none, or one cannot be read; one line with the way out.
        ValueError: a file without a number.
    """
    zones = sorted(powercap.glob("intel-rapl:*"))
    names = {zone: (zone / "name").read_text(encoding="ascii").strip() for zone in zones}
    counted = {zone: name for zone, name in names.items() if name.startswith("package") or name == "dram"}
    if not counted:
        raise OSError(f"no RAPL in {powercap}, as in a virtual machine, or on other processors than Intel's and AMD's")
    return [_rapl_counter(zone, name) for zone, name in counted.items()]


def _rapl_counter(zone: Path, name: str) -> Counter:
    file = zone / "energy_uj"

    def joules() -> float:
        return 1e-6 * int(file.read_text(encoding="ascii"))

    try:
        joules()
    except PermissionError as error:
        raise OSError(f"only root may read {file}: sudo chmod a+r {file}") from error
    return Counter(name, joules, 1e-6 * int((zone / "max_energy_range_uj").read_text(encoding="ascii")))


def gpu_counters(gpu: torch.device) -> list[Counter]:
    """Return the counter of a GPU, from Volta on.

    Raises:
        OSError: no NVML, or it does not count this GPU; one line.
    """
    nvml, handle, millijoules = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(nvml, name)(*arguments):
            raise OSError(f"{name} returns {status}")

    def joules() -> float:
        call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        return 1e-3 * millijoules.value

    facts = torch.cuda.get_device_properties(gpu)
    call("nvmlInit_v2")
    call("nvmlDeviceGetHandleByUUID", f"GPU-{facts.uuid}".encode(), ctypes.byref(handle))
    joules()
    return [Counter(facts.name, joules)]
