"""Lanes of a benchmark that are slower than in an earlier report of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specllava.core.config import one_line

MODELS: Final = ("pair", "target", "draft", "device", "dtype")  # that two reports must share
Ends = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]


class SlowerError(ValueError):
    """Error of a benchmark in which lanes got slower; one line that names them."""


@dataclass(frozen=True, slots=True)
class _OldLane:
    """What is read of a lane; ``interval`` is missing in reports that were written before there were any."""

    speedup: float | None
    interval: Ends | None
    ms_per_token: float | None
    ms_per_token_interval: Ends | None


@dataclass(frozen=True, slots=True)
class OldReport:
    """What is read of an earlier ``bench --json``.

    Args:
        reference: lane that its speed-ups are over.
        machine: what it says of the machine; ``cpu`` and ``gpu`` are read.
    """

    lanes: dict[str, _OldLane]
    setting: dict[str, Any]
    config: dict[str, Any]
    machine: dict[str, Any]
    data: str
    reference: str

    @classmethod
    def read(cls, file: Path) -> OldReport:
        """Read the file of ``bench --json``.

        Raises:
            ValueError: no such file, or one of another format; one line with the way out.
        """
        again = "write it anew with bench --json"
        if not file.is_file():
            raise ValueError(f"--against {file}: there is no such file, {again}")
        try:
            found = json.loads(file.read_bytes())
            names = ("lanes", "setting", "config", "machine", "data", "reference")
            kept = {name: found[name] for name in names if name in found} if isinstance(found, dict) else found
            report: OldReport = _ADAPTER.validate_python(kept)
        except ValidationError as error:
            why = one_line(error, most=1)
            raise ValueError(f"--against {file.name} is no report with intervals, {again}: {why}") from error
        except ValueError as error:
            raise ValueError(f"--against {file.name} is no JSON, {again}") from error
        return report


_ADAPTER: TypeAdapter[OldReport] = TypeAdapter(OldReport)


def check_comparable(old: OldReport, report: Mapping[str, Any]) -> None:
    """Refuse to compare reports of different work.

    Raises:
        ValueError: other models, precision, device, prompts or longest answer; one line that names the first of them.
    """
    pairs: list[tuple[str, object, object]] = [
        *((name, old.setting.get(name), report["setting"].get(name)) for name in MODELS),
        ("data", old.data, report["data"]),
        ("max_new_tokens", old.config.get("max_new_tokens"), report["config"]["max_new_tokens"]),
    ]
    for name, before, now in pairs:
        if before != now:
            raise ValueError(f"--against compares nothing: its {name} is {before!r}, and now it is {now!r}")


def slower_lanes(old: OldReport, report: Mapping[str, Any]) -> list[str]:
    """Name the lanes whose speed-up is now below the interval that it had, with the figures.

    A lane that speed-ups are over cannot lose against itself, so on the same processor its time per token is compared,
    too. So are those of all lanes where another lane is the reference now.
    """
    same_machine = all(old.machine.get(name) == report["machine"].get(name) for name in ("cpu", "gpu"))
    same_reference = old.reference == report["reference"]
    found = []
    for name, row in report["lanes"].items():
        before = old.lanes.get(name)
        if before is None:
            continue
        if same_reference and name != old.reference:
            value, ends = row["speedup"], before.interval
            if value is not None and ends is not None and value < ends[0]:
                found.append(f"{name} {value:.2f}× (was {before.speedup:.2f}×, {ends[0]:.2f} to {ends[1]:.2f})")
        elif same_machine:
            value, ends = row["ms_per_token"], before.ms_per_token_interval
            if value is not None and ends is not None and value > ends[1]:
                was = f"was {before.ms_per_token:.2f}, {ends[0]:.2f} to {ends[1]:.2f}"
                found.append(f"{name} {value:.2f} ms a token ({was})")
    return found
