"""What one forward pass costs by the number of tokens in it, with weights as loaded and stored row by row.

    python -m benchmarks.passes --json benchmarks/results/passes.json

Timings alternate between the two layouts, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import copy
import statistics
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.pass_seconds import CONTEXT, engine_of, pass_seconds
from specllava.cli.options import write_json
from specllava.pair import Pair

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)


def main(repeats: int = 40, json: Path | None = None, preset: str = "toy") -> None:
    """Measure both models.

    Args:
        repeats: passes per number of tokens.
        json: write the medians to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, model in (("target", pair.target), ("draft", pair.draft)):
        assert model is not None
        plain = copy.deepcopy(model)
        for module in plain.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = module.weight.data.contiguous()
        engines = [engine_of(each, CONTEXT + max(ROWS)) for each in (model, plain)]
        loaded, by_row = pass_seconds(engines, ROWS, repeats)
        found[name] = {rows: (_median(loaded[rows]), _median(by_row[rows])) for rows in ROWS}
    lines = [
        (name, str(count), *(f"{value:.2f}" for value in medians))
        for name, own in found.items()
        for count, medians in own.items()
    ]
    show_table(("model", "tokens", "as loaded, ms", "row by row, ms"), lines, f"median of {repeats} passes")
    write_json(json, {"milliseconds": found, "setting": asdict(pair.info), "repeats": repeats})


def _median(seconds: list[float]) -> float:
    """Milliseconds."""
    return round(1e3 * statistics.median(seconds), 3)


if __name__ == "__main__":
    run_command(main)
