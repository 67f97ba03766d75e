"""The command ``python -m specllava distill``, alone or under ``accelerate launch``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import tyro
from rich.console import Console

from specllava.cli.options import announce_loading, hide_progress_bars, print_line
from specllava.distill.config import DistillConfig, Job


@dataclass(frozen=True, kw_only=True)
class Distill(Job):
    """Teach a draft to guess what its target says, on data in LLaVA's format; may be killed and repeated."""

    training: Annotated[DistillConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=DistillConfig)

    def run(self, console: Console) -> None:
        announce_loading(self.target if self.draft is None else f"{self.target} and {self.draft}")
        from specllava.distill.train import distil_files
        from visual.figures.distillation import write_page

        hide_progress_bars()
        report = distil_files(self, partial(print_line, console))
        if report is None:  # another process prints it
            return
        write_page(report, self.output / "curve.html")
        draft, step = self.output / "draft", report.best.step
        if step == 0:
            print_line(console, f"no validation was better than the first: {draft} is the draft that it began with")
        else:
            print_line(console, f"{report.state}: {draft} is the draft of step {step}")
