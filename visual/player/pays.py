"""Data of the card "Does it pay for me?": recorded steps of every rule, and costs that were measured elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from specllava.core.config import one_line
from specllava.core.growth.rules import RULE_INFOS
from specllava.findings.replays import GUESSES, Replays
from visual.player.encoding import frame_json, packed
from visual.player.published_costs import PUBLISHED
from visual.player.starts import STARTS
from visual.player.static_files import STATIC

REPLAYS: Final = STATIC / "replays.json"
MEASURED: Final = Path(__file__).parents[2] / "benchmarks" / "results"  # beside the packages in a checkout
MAX_REPORT_BYTES: Final = 100_000

Words = Annotated[str, Field(min_length=1, max_length=200)]
Duration = Annotated[float, Field(gt=0, lt=1e4)]  # seconds
PART: Final = ConfigDict(extra="ignore", allow_inf_nan=False)  # a report holds more than is needed here


@dataclass(frozen=True, slots=True)
class CostPreset:
    """Costs of a pair's passes, in milliseconds, as the card's fields take them.

    Args:
        name: what was measured, on what, when.
        one, many: a target pass over one token, and one that verifies ``GUESSES`` guesses.
        level: one of the draft's passes.
        reading, drafting: of picture and question, by the target with its tower, and by the draft.
    """

    name: str
    one: float
    many: float
    level: float
    reading: float
    drafting: float


@checked(frozen=True, slots=True, config=PART)
class _Cycle:
    guesses: Annotated[float, Field(ge=0, lt=1e4)]
    levels: Annotated[float, Field(ge=0, lt=1e4)]
    draft: Annotated[float, Field(ge=0, lt=1e4)]
    total: Duration


@checked(frozen=True, slots=True, config=PART)
class _Seconds:
    vision: Duration
    target_prefill: Duration
    draft_prefill: Duration
    cycles: dict[Words, _Cycle]


@checked(frozen=True, slots=True, config=PART)
class _Machine:
    gpu: Words


@checked(frozen=True, slots=True, config=PART)
class _Setting:
    dtype: Words


@checked(frozen=True, slots=True, config=PART)
class _Report:
    """The part of a report of ``benchmarks.gpu_llava`` with the costs of passes."""

    size: Words
    date: Words
    setting: _Setting
    hardware: _Machine
    seconds: _Seconds


_REPORT: TypeAdapter[_Report] = TypeAdapter(_Report)


def read_preset(file: Path) -> CostPreset:
    """Read the costs of passes from a report of ``python -m benchmarks.gpu_llava --json``.

    Passes are taken from whole steps, with their bookkeeping, and pooled over the lanes that draft.

    Raises:
        ValueError: too large, no such report, or no lane that drafts beside one that does not; one line.
    """
    size = file.stat().st_size
    if size > MAX_REPORT_BYTES:
        raise ValueError(f"{file.name} has {size:,} bytes, and at most {MAX_REPORT_BYTES:,} are read")
    try:
        report = _REPORT.validate_json(file.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{file.name} is no report of benchmarks.gpu_llava: {one_line(error)}") from error
    seconds = report.seconds
    alone = [cycle for cycle in seconds.cycles.values() if not cycle.guesses]
    drafting = [cycle for cycle in seconds.cycles.values() if cycle.guesses and cycle.levels]
    if len(alone) != 1 or not drafting:
        raise ValueError(f"{file.name} needs one lane that does not draft and at least one that does")
    one = alone[0].total
    slope = sum(cycle.total - cycle.draft - one for cycle in drafting) / sum(cycle.guesses for cycle in drafting)
    level = sum(cycle.draft for cycle in drafting) / sum(cycle.levels for cycle in drafting)
    return CostPreset(
        f"LLaVA-1.5 {report.size} on {report.hardware.gpu}, {report.setting.dtype}, measured {report.date}",
        1e3 * one, 1e3 * (one + max(0.0, slope) * GUESSES), 1e3 * level,
        1e3 * (seconds.vision + seconds.target_prefill), 1e3 * seconds.draft_prefill,
    )  # fmt: skip


def pays_data(measured: Path = MEASURED, code: str = "") -> dict[str, Any]:
    """Return the card's data as JSON has it: recorded steps, costs, and how to start.

    Args:
        measured: directory whose ``gpu-llava*.json`` are presets.
        code: address of the project's files; "" if none is known.
    """
    replays = Replays.read(REPLAYS)
    rules = [
        {"name": name, "help": RULE_INFOS[name].help, "steps": [step for answer in answers for step in answer]}
        for name, answers in replays.rules.items()
        if name in RULE_INFOS
    ]
    source = f"{replays.prompts} {replays.what} with the {replays.setting.pair} pair on {replays.setting.device}"
    presets = [asdict(read_preset(file)) for file in sorted(measured.glob("gpu-llava*.json"))]
    starts = [{"name": one.name, "commands": one.commands, "guide": one.guide} for one in STARTS]
    return {
        "rules": rules, "source": f"{source}, {replays.date}, {replays.command}", "presets": presets,
        "published": [asdict(one) for one in PUBLISHED], "starts": starts, "code": code.rstrip("/"),
        "toy": replays.setting.pair,
    }  # fmt: skip


@cache
def packed_pays(code: str = "") -> str:
    """Return :func:`pays_data`, packed for the browser."""
    return packed(frame_json(pays_data(code=code)))
