"""τ and KL against training steps for both kinds of draft: a draft VLM and an EagleVLM, both new, on the same rows.

    python -m benchmarks.training_scaling --output runs/scaling --picture docs/training_scaling.png

Each number of steps is a run of the distill command by itself, whose learning rate falls to zero at its end. A run that
is done is not done again, so the command may be killed and repeated.
"""

from __future__ import annotations

import json as json_format
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.distillation import prepare, teach
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.pictures import write_png
from specllava.cli.options import write_json
from specllava.distill.config import DistillConfig
from specllava.findings.distillation import Report
from specllava.toyworld.recipe import ToyRecipe
from visual.figures import theme

WIDTH, HEIGHT = 1000, 460
COMMON: Final = DistillConfig(batch=8, learning_rate=2e-3, validate_every=0, validation_prompts=16, checkpoint_every=50)
TOY: Final = ToyRecipe()
DRAFTERS: Final = {
    "draft VLM": COMMON,
    "EagleVLM": replace(
        COMMON, drafter="eagle", ce_weight=1.0, feature_weight=0.1, rollout=4,
        draft_heads=TOY.eagle_heads, draft_intermediate=TOY.eagle_intermediate,
    ),
}  # fmt: skip
COLOURS: Final = dict(zip(DRAFTERS, (theme.QUIET, theme.ACCEPTED), strict=True))


def main(
    output: Path,
    picture: Path | None = None,
    json: Path | None = None,
    rows: int = 4000,
    steps: tuple[int, ...] = (50, 150, 500),
) -> None:
    """Teach each drafter for each number of steps, and report its last validation.

    Args:
        output: directory for data, drafts and runs.
        picture: PNG file to write.
        json: write the rows to this file.
        rows: conversations of the data file.
        steps: of the optimiser, one run each.
    """
    prepare(output, rows)
    found = [learn(output, name, count) for count in steps for name in DRAFTERS]
    lines = [
        (row["draft"], str(row["steps"]), f"{row['kl']:.3f}", f"{row['agreement']:.3f}", f"{row['tau']:.2f}",
         f"{row['seconds']:.0f}")
        for row in found
    ]  # fmt: skip
    show_table(("draft", "steps", "KL, nats", "agreement", "τ", "seconds"), lines)
    write_json(json, {"rows": rows, "results": found})
    if picture is not None:
        write_png(figure(found), picture)


def learn(output: Path, name: str, steps: int) -> dict[str, Any]:
    """Teach a new draft, and return its row."""
    place = output / f"{DRAFTERS[name].drafter}-{steps}"
    training = replace(DRAFTERS[name], steps=steps, warmup=min(50, steps // 4))
    started = time.perf_counter()
    report = teach(output, place, training)
    clock = place / "seconds.json"
    if not clock.exists():
        clock.write_text(json_format.dumps(time.perf_counter() - started), encoding="utf-8")
    last = Report.read(report).checks[-1]
    seconds = json_format.loads(clock.read_text(encoding="utf-8"))
    return {
        "draft": name, "steps": steps, "kl": last.kl, "agreement": last.agreement, "tau": last.tau, "seconds": seconds
    }  # fmt: skip


def figure(rows: list[dict[str, Any]]) -> go.Figure:
    """Draw τ and KL by steps, a line for each drafter."""
    drawn = make_subplots(cols=2, subplot_titles=("τ, tokens per target pass", "KL(target ‖ draft), nats per token"))
    for name, colour in COLOURS.items():
        mine = [row for row in rows if row["draft"] == name]
        for column, key in enumerate(("tau", "kl"), start=1):
            drawn.add_scatter(
                x=[row["steps"] for row in mine], y=[row[key] for row in mine], name=name, mode="lines+markers",
                line={"color": colour}, marker={"size": 9}, showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    drawn.update_xaxes(type="log", title_text="training steps", tickvals=sorted({row["steps"] for row in rows}))
    drawn.update_yaxes(type="log", tickvals=[0.1, 0.2, 0.5, 1, 2, 5], col=2)
    return drawn.update_layout(
        template="plotly_white", width=WIDTH, height=HEIGHT, legend={"orientation": "h", "y": -0.2},
        margin={"l": 60, "r": 30, "t": 50, "b": 60},
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
