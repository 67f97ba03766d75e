"""The output directory of a distillation: its paths, its owner, and atomic writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from specllava.findings.distillation import Report

WRITING = ".writing"  # of a file that a kill may leave
CONFIG, REPORT = "run.json", "report.json"


@dataclass(frozen=True, slots=True)
class Output:
    """Paths of a run's output directory."""

    root: Path

    @property
    def draft(self) -> Path:
        """The best draft by validation τ."""
        return self.root / "draft"

    @property
    def last(self) -> Path:
        """The draft at the end of training."""
        return self.root / "last"

    @property
    def rows(self) -> Path:
        return self.root / "work" / "rows"

    @property
    def answers(self) -> Path:
        return self.root / "work" / "answers"

    @property
    def fresh(self) -> Path:
        """A new draft that the run begins with."""
        return self.root / "work" / "fresh"

    @property
    def aligned(self) -> Path:
        """The draft after the projector's own stage."""
        return self.root / "work" / "aligned"

    def checkpoints(self, stage: str) -> Path:
        return self.root / "work" / "checkpoints" / stage

    def remove_checkpoints(self, stage: str) -> None:
        """Remove a stage's checkpoints: its result is saved."""
        shutil.rmtree(self.checkpoints(stage), ignore_errors=True)

    def claim(self, identity: dict[str, Any], accelerator: Accelerator) -> None:
        """Claim the directory for this run, or check that it already belongs to this run.

        A run that produced nothing, for example because of a wrong path, has no claim; another may use the directory.

        Raises:
            ValueError: it belongs to another run, or holds something else.
        """
        written = self.root / CONFIG
        names: list[str] = []
        if written.is_file():
            theirs = json.loads(written.read_text(encoding="utf-8"))
            names = [name for name in {**identity, **theirs} if identity.get(name) != theirs.get(name)]
            if names and ((self.root / REPORT).exists() or self.answers.exists()):
                differences = ", ".join(
                    f"{name} {theirs.get(name)} there, {identity.get(name)} here" for name in names[:4]
                )
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                raise ValueError(f"{self.root} holds another run ({differences}{more}): choose another --output")
        elif self.root.exists() and (not self.root.is_dir() or any(p.suffix != WRITING for p in self.root.iterdir())):
            raise ValueError(f"{self.root} exists and is no distillation run: choose another --output")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process and (names or not written.is_file()):
            shutil.rmtree(self.root / "work", ignore_errors=True)
            self.root.mkdir(parents=True, exist_ok=True)
            _write(written, json.dumps(identity, indent=1))
        accelerator.wait_for_everyone()

    def finished(self) -> Report | None:
        """Return the report of a run that has ended, else ``None``."""
        if not (self.root / REPORT).is_file():
            return None
        report = Report.read(self.root / REPORT)
        return None if report.state == "running" else report

    def write(self, report: Report) -> None:
        _write(self.root / REPORT, report.to_json().decode())

    def write_stage(self, state: dict[str, Any]) -> None:
        """Write log and validations of the projector's stage."""
        _write(self.aligned.with_suffix(".json"), json.dumps(state))

    def read_stage(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.aligned.with_suffix(".json").read_text(encoding="utf-8"))
        return state


def _write(file: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    beside = file.with_name(file.name + WRITING)
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(file)
