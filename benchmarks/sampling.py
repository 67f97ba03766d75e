"""Sampling: what each way of guessing and judging accepts, by temperature.

    python -m benchmarks.sampling --prompts 20 --json benchmarks/results/sampling.json

All have trees of one shape. The guesses are the draft's best; drawn from the draft, verified token by token; or drawn
and verified branch by branch (traversal verification).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from specllava.bench.toy_dialogues import toy_prompts
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.core.metrics import summarise
from specllava.lane import Lane
from specllava.pair import Pair

TEMPERATURES = (0.5, 1.0, 1.5)
BEST = DecodingConfig(rule="fixed", branching=(3, 2, 1, 1, 1), nodes=64, depth=5, temperature=1.0)
DRAWN = replace(BEST, children="drawn")
KEYS = ("temperature", "children", "verifier")
WAYS = (BEST, DRAWN, replace(DRAWN, verifier="traversal"))


def main(prompts: int = 20, seeds: int = 3, json: Path | None = None, preset: str = "toy") -> None:
    """Measure on held-out prompts.

    Args:
        prompts: how many.
        seeds: answers to each.
        json: write the rows to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    asked = list(toy_prompts(pair, "held-out", prompts))
    rows = []
    for temperature, config in tqdm(list(product(TEMPERATURES, WAYS))):
        lanes = [
            Lane("speculative", replace(config, temperature=temperature, seed=seed), prompt)
            for prompt in asked
            for seed in range(seeds)
        ]
        summary = summarise([pair.run(lane) for lane in lanes])
        way = {"temperature": temperature, "children": config.children, "verifier": config.verifier}
        rows.append({**way, "tau": summary.tau, "tokens": summary.tokens})
    lines = [(*(str(row[key]) for key in KEYS), f"{row['tau']:.2f}", str(row["tokens"])) for row in rows]
    show_table((*KEYS, "τ", "tokens"), lines, f"{prompts} prompts, {seeds} seeds")
    write_json(json, {"rows": rows, "setting": asdict(pair.info), "prompts": prompts, "seeds": seeds})


if __name__ == "__main__":
    run_command(main)
