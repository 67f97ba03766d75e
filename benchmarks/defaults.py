"""Where the defaults come from: a grid of tree settings on held-out toy prompts, one row each.

    python -m benchmarks.defaults --prompts 4 --json benchmarks/results/defaults.json
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from benchmarks.shared.command import run_command, show_table
from specllava.bench.lanes import REFERENCE, bench_lanes, own_runners
from specllava.bench.results import results_of
from specllava.bench.rounds import Plan, measure
from specllava.bench.toy_dialogues import toy_dialogues
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.pair import Pair


def grid() -> dict[str, DecodingConfig]:
    """Every rule over the options that matter to it."""
    base = DecodingConfig()
    lanes = {REFERENCE: replace(base, drafter="none")}
    for depth, floor in product((6, 10, 16), (-1.0, -1.4, -2.0)):
        chain = replace(base, rule="chain", depth=depth, nodes=depth, min_log_prob=floor)
        lanes[f"chain D={depth} floor={floor}"] = chain
    for width, depth, nodes in product((2, 4), (6, 10), (12, 24)):
        lanes[f"topk w={width} D={depth} n={nodes}"] = replace(base, rule="topk", width=width, depth=depth, nodes=nodes)
    for depth, nodes in product((6, 10), (8, 16)):
        lanes[f"sequoia D={depth} n={nodes}"] = replace(base, rule="sequoia", depth=depth, nodes=nodes)
    for branching in ((2, 1, 1, 1), (3, 2, 1, 1, 1), (2, 2, 1, 1, 1, 1)):
        name = f"fixed {'-'.join(map(str, branching))}"
        lanes[name] = replace(base, rule="fixed", branching=branching, nodes=64)
    lanes["cost-aware"] = bench_lanes(base)["cost-aware"]
    often = product((0.3,), (10, 16), (20, 40), (-1.0, -1.4, -2.0, -2.7))
    seldom = product((0.6,), (16,), (20, 40), (-1.4, -2.0))
    for threshold, depth, nodes, floor in (*often, *seldom):
        name = f"entropy h={threshold} D={depth} n={nodes} floor={floor}"
        lanes[name] = replace(
            base, entropy_threshold=threshold, depth=depth, nodes=nodes, min_log_prob=floor, width=4, max_branches=3
        )
    return lanes


def main(prompts: int = 20, json: Path | None = None, preset: str = "toy") -> None:
    """Measure the grid.

    Args:
        prompts: held-out prompts per setting.
        json: write the rows to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    asked = tuple(toy_dialogues("held-out", prompts, 1))
    plan = Plan("held-out toy scenes", rounds=1, floor=False)
    results = results_of(measure(pair, asked, own_runners(pair, grid()), DecodingConfig(), plan))
    rows = {name: lane.as_json() for name, lane in results.items()}
    lines = [
        (name, *(f"{rows[name][key]:.2f}" for key in ("tau", "ms_per_token", "speedup", "efficiency")))
        for name, _ in sorted(results.items(), key=lambda item: -item[1].speedup.value)
    ]
    show_table(("setting", "τ", "ms/token", "speed-up", "efficiency"), lines, f"{prompts} prompts")
    write_json(json, {"lanes": rows, "setting": asdict(pair.info), "prompts": prompts})


if __name__ == "__main__":
    run_command(main)
