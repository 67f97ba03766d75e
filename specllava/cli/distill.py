"""The command ``python -m specllava distill``, alone or under ``accelerate launch``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from specllava.cli.options import announce_loading, hide_progress_bars, print_line
from specllava.core.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.models.loading.load_options import DTypeName


@dataclass(frozen=True)
class Distill:
    """Teach a draft to guess what its target says, on data in LLaVA's format; may be killed and repeated."""

    target: str
    """The target, of any family: an id of the hub, or a directory."""

    data: Path
    """Rows in LLaVA's instruction format: a JSON list, or a .jsonl."""

    images: Path
    """Directory in which the rows' image paths begin."""

    output: Path
    """Directory of the run: draft (the best by τ), last, report.json and curve.html appear in it."""

    draft: Path | None = None
    """Directory of the draft to begin with. --drafter eagle and eagle3 make a new one without it."""

    features: Path | None = None
    """Compute every picture's features once and keep them in this directory, which other runs may share."""

    device: Literal["auto", "cpu"] = "auto"
    """cpu, or auto for what accelerate finds."""

    dtype: DTypeName = "auto"
    """Precision of the target; auto is float32 on a CPU and bfloat16 elsewhere. The draft learns in float32."""

    context: int | None = None
    """Tokens that prompt and answer may have together; without it as many as the target can hold."""

    training: Annotated[DistillConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=DistillConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How validation drafts."""

    def run(self, console: Console) -> None:
        announce_loading(self.target if self.draft is None else f"{self.target} and {self.draft}")
        from specllava.distill.job import Job
        from specllava.distill.run import distil_files
        from visual.figures.distillation import write_page

        hide_progress_bars()
        job = Job(**{part.name: getattr(self, part.name) for part in fields(Job)})

        report = distil_files(job, partial(print_line, console))
        if report is None:  # another process prints it
            return
        write_page(report, self.output / "curve.html")
        draft, step = self.output / "draft", report.best.step
        if step == 0:
            print_line(console, f"no validation was better than the first: {draft} is the draft that it began with")
        else:
            print_line(console, f"{report.state}: {draft} is the draft of step {step}")
