"""KL and τ of a toy draft that learns from nothing: data, a fresh draft, the distill command, a picture of its report.

    python -m benchmarks.distillation --output runs/curve --picture docs/distillation.png

Whatever is in the output directory already is not done again, so the command may be killed and repeated.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoProcessor, LlavaConfig

from benchmarks.shared.command import run_command
from benchmarks.shared.pictures import write_png
from specllava.cli.distill import Distill
from specllava.core.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.findings.distillation import Report
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.models.loading.presets import presets
from specllava.toyworld.export import export
from visual.figures.distillation import figure

WIDTH, HEIGHT = 900, 520


def main(output: Path, picture: Path, report: Path | None = None, rows: int = 1500, steps: int = 150) -> None:
    """Teach a draft of the toy draft's size, from random weights, and draw its validations.

    Args:
        output: directory for data, drafts and the run.
        picture: PNG file to write.
        report: where to put a copy of the run's report.
        rows: conversations of the data file.
        steps: of the optimiser.
    """
    prepare(output, rows)
    training = DistillConfig(
        steps=steps, batch=8, learning_rate=2e-3, warmup=20, validate_every=max(1, steps // 6), checkpoint_every=25,
        validation_prompts=8,
    )  # fmt: skip
    found = teach(output, output / "run", training)
    draw(Report.read(found), picture)
    if report is not None:
        report.write_text(found.read_text(encoding="utf-8").replace(f"{Path.cwd()}/", ""), encoding="utf-8")


def prepare(output: Path, rows: int) -> None:
    """Write data and a fresh draft, unless an earlier call has."""
    if not (output / "data" / "data.json").exists():
        export(output / "data", rows)
    if not (output / "fresh").exists():
        toy = presets()["toy"]
        torch.manual_seed(0)
        fresh = DraftLlava(LlavaConfig.from_pretrained(toy.draft))
        save(fresh, AutoProcessor.from_pretrained(toy.draft), output / "fresh", torch.float32)


def teach(output: Path, folder: Path, training: DistillConfig) -> Path:
    """Teach a new draft on the prepared data, unless an earlier call has, and return the file of its report.

    Args:
        folder: directory of the run.
    """
    Distill(
        target=str(presets()["toy"].target),
        draft=output / "fresh" if training.drafter == "vlm" else None,
        data=output / "data" / "data.json",
        images=output / "data" / "images",
        output=folder,
        training=training,
        decoding=DecodingConfig(max_new_tokens=64),
    ).run(Console())
    return folder / "report.json"


def draw(report: Report, picture: Path) -> None:
    """The run's picture as a PNG; the run itself needs no browser."""
    title = f"a fresh draft learns from the toy {report.target}: {report.setting['device']}, {report.setting['dtype']}"
    write_png(figure(report, title).update_layout(width=WIDTH, height=HEIGHT), picture)


if __name__ == "__main__":
    run_command(main)
