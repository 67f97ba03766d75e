"""What one forward pass costs by the number of tokens in it, with weights as loaded and stored row by row.

    python -m benchmarks.passes --json benchmarks/results/passes.json

Timings alternate between the two layouts, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import copy
import statistics
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from specllava.models.engine import Engine
from specllava.models.prompt import Prompt
from specllava.models.timing import now
from specllava.options import write_json
from specllava.pair import Pair
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
WARM_UP = 5


def main(repeats: int = 40, json: Path | None = None, preset: str = "toy") -> None:
    """Measure both models.

    Args:
        repeats: passes per number of tokens.
        json: write the medians to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    prompt = pair.prompt(draw_scene(sample_scene(0), 256), "Describe this image in detail.")
    table = Table("model", "tokens", "as loaded, ms", "row by row, ms", title=f"median of {repeats} passes")
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, model in (("target", pair.bundle.target), ("draft", pair.bundle.draft)):
        assert model is not None
        plain = copy.deepcopy(model)
        for module in plain.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = module.weight.data.contiguous()
        engines = [Engine(each, prompt.length + max(ROWS)) for each in (model, plain)]
        found[name] = measure(engines, prompt, repeats)
        for rows, (loaded, by_row) in found[name].items():
            table.add_row(name, str(rows), f"{loaded:.2f}", f"{by_row:.2f}")
    Console(width=80).print(table)
    write_json(json, {"milliseconds": found, "setting": asdict(pair.setting), "repeats": repeats})


@torch.inference_mode()
def measure(engines: list[Engine], prompt: Prompt, repeats: int) -> dict[int, tuple[float, float]]:
    """Median milliseconds of a pass of each engine, by its number of tokens."""
    for engine in engines:
        engine.prefill(prompt.input_ids, prompt.features)
    base = prompt.length
    found: dict[int, tuple[float, float]] = {}
    for rows in ROWS:
        visible = np.ones((rows, base + rows), dtype=np.bool_)
        visible[:, base:] = np.tril(np.ones((rows, rows), dtype=np.bool_))
        seconds: list[list[float]] = [[] for _ in engines]
        for repeat in range(WARM_UP + repeats):
            for engine, taken in zip(engines, seconds, strict=True):
                started = now(engine.device)
                engine.forward(range(5, 5 + rows), visible if rows > 1 else None, range(base, base + rows))
                if repeat >= WARM_UP:
                    taken.append(now(engine.device) - started)
                engine.cache.keep(base, [])
        first, second = (round(1e3 * statistics.median(taken), 3) for taken in seconds)
        found[rows] = first, second
    return found


if __name__ == "__main__":
    tyro.cli(main)
