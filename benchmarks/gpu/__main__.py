"""The GPU path in one command: what passes and steps cost, and whether captured ones are the called ones, bit by bit.

    python -m benchmarks.gpu        # make gpu: one GPU with 24 GB, less than nine minutes

Nothing is downloaded: LLaVA-1.5-7B and its drafts have the published shapes and random weights.
So times are those of the real pair. How many tokens a pass brings is set by design.
Parts run in the order of their worth, and gpu.json and gpu.md are written after each of them.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.lanes import hardware
from benchmarks.gpu.parts import NEEDS, PARTS, Amount, Bench, Part
from benchmarks.gpu.report import Report, goals, written
from benchmarks.shared.command import run_command, show
from benchmarks.shared.random_pair import SizeName, build, device_for, size_of
from specllava.cli.options import write_json
from specllava.core.files import write_whole

RESULTS = Path(__file__).parents[1] / "results"


class Warnings(logging.Handler):
    """Handler that keeps the lines of warnings, such as that of a capture that failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run_part(part: Part, bench: Bench) -> dict[str, Any]:
    """Run a part; one that fails leaves a line, and the others their results."""
    started = time.perf_counter()
    found, error = None, None
    try:
        found = part(bench)
    except Exception as raised:  # noqa: BLE001 - whatever it is, what was measured before must not be lost
        error = f"{type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}"
    gc.collect()  # engines in cycles hold gigabytes, and must not go while a pass is captured
    return {"found": found, "error": error, "seconds": time.perf_counter() - started}


def run_parts(bench: Bench, report: Report, output: Path, budget: float) -> None:
    """Run all parts, and write what is known after each.

    Args:
        budget: seconds since the report began, after which parts are skipped; one that needs long even before.
    """
    started, noted = time.perf_counter(), Warnings()
    logging.getLogger("specllava").addHandler(noted)
    try:
        for name, part in PARTS.items():
            if time.perf_counter() - started + NEEDS.get(name, 0.0) > budget:
                report["parts"][name] = {"found": None, "error": "skipped: over the budget", "seconds": 0.0}
            else:
                report["parts"][name] = run_part(part, bench)
            report |= {"took": time.perf_counter() - started, "warnings": noted.lines}
            reached = [asdict(goal) for goal in goals(report)]
            write_json(output / "gpu.json", report | {"goals": reached})
            write_whole(output / "gpu.md", written(report))
    finally:
        logging.getLogger("specllava").removeHandler(noted)


def main(
    size: SizeName = "7b", output: Path = RESULTS, budget: float = 480.0, device: str = "cuda"
) -> int:
    """Measure, and write ``gpu.json`` and ``gpu.md``; a part that fails makes the exit code 1, no GPU makes it 2.

    Args:
        size: 7b is LLaVA-1.5-7B with a draft of 160M.
        output: directory of both files.
        budget: seconds after which parts are skipped, each by its name.
        device: cuda or cuda:N.

    Raises:
        ValueError: the models do not fit the device.
    """
    if not torch.cuda.is_available():
        print("this measures a GPU, and torch finds none here", file=sys.stderr)
        return 2
    output.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        place, dtype = device_for(size_of(size), device)
        pair = build(size, place, dtype)
        report: Report = {
            "size": size, "date": time.strftime("%Y-%m-%d"), "setting": asdict(pair.info),
            "hardware": hardware(place), "parts": {},
        }  # fmt: skip
        run_parts(Bench(pair, Amount()), report, output, budget)
    show(written(report))
    return int(any(part["error"] for part in report["parts"].values()))


if __name__ == "__main__":
    run_command(main)
