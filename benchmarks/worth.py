"""When is a tree worth more than a chain? It depends on what one more guess costs the target's pass.

    python -m benchmarks.worth --prompts 16 --json benchmarks/results/worth.json

Every lane decodes, and its passes are counted by their number of tokens. Their time is then added up from the costs
measured on this machine. What many tokens take beyond one token is scaled: down to nothing, as on an accelerator
that waits for its memory anyway, or up. Neither other work on the machine nor bookkeeping between passes is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.prices import UncorrectedCosts
from specllava.bench.lanes import bench_lanes
from specllava.bench.toy_dialogues import toy_prompts
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.core.growth.cost_model import CostModel, Costs
from specllava.core.growth.rules import build_rule
from specllava.core.trace import StepTrace
from specllava.decoding import stream
from specllava.findings.replays import ReplayStep, priced
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt

DEPTHS, NODES, FLOORS = (6, 10, 16), (12, 40), (-0.7, -1.0, -1.4, -2.0)
WARM_UP = 12  # prompts before the counted ones: cost-aware learns from them, the others have nothing to learn


def count(
    pair: Pair, prompts: Sequence[Prompt], config: DecodingConfig, cost_model: CostModel | None = None, skipped: int = 0
) -> list[ReplayStep]:
    """Decode the prompts and count the passes of all steps from prompt number ``skipped`` on."""
    counted = list[ReplayStep]()
    for number, prompt in enumerate(prompts):
        rule = None if cost_model is None else build_rule(config, cost_model)
        request = pair.request(Lane("recorded", config, prompt, rule=rule), record=False)
        steps = (event for event in stream(request) if isinstance(event, StepTrace))
        found = [ReplayStep.counted(step, request.draft_pass_tokens) for step in steps]
        counted += found if number >= skipped else []
    return counted


def scaled(costs: Costs, slope: float) -> Costs:
    """The same passes, where tokens beyond the first cost the target ``slope`` times as much."""
    first = costs.verify[0]
    return replace(costs, verify=tuple(first + slope * (each - first) for each in costs.verify))


def hand_set(base: DecodingConfig) -> dict[str, DecodingConfig]:
    """Chains and entropy trees, over the options that matter to them."""
    lanes = {}
    for depth, floor in product(DEPTHS, FLOORS):
        line = replace(base, rule="chain", depth=depth, nodes=depth, min_log_prob=floor)
        lanes[f"chain D={depth} floor={floor}"] = line
        for nodes in NODES:
            tree = replace(base, depth=depth, nodes=nodes, min_log_prob=floor)
            lanes[f"entropy D={depth} n={nodes} floor={floor}"] = tree
    return lanes


def main(prompts: int = 16, slopes: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0), json: Path | None = None) -> None:
    """Compare the best chain, the best entropy tree and the cost-aware rule.

    Args:
        prompts: held-out prompts that are counted.
        slopes: what tokens beyond the first cost the target's pass, times what they cost here.
        json: write the rows to this file.
    """
    pair = Pair.from_preset("toy")
    asked = list(toy_prompts(pair, "held-out", WARM_UP + prompts))
    base = DecodingConfig()
    here = pair.measured_costs
    fixed = {name: count(pair, asked[WARM_UP:], config) for name, config in tqdm(hand_set(base).items())}
    lines, rows = [], []
    for slope in slopes:
        costs = scaled(here, slope)
        aware = count(pair, asked, bench_lanes(base)["cost-aware"], UncorrectedCosts(costs), WARM_UP)
        lanes = {name: priced(steps, costs) for name, steps in {**fixed, "cost-aware": aware}.items()}
        speeds = {name: lane.speedup for name, lane in lanes.items()}
        best = {
            rule: max((name for name in lanes if name.split()[0] == rule), key=speeds.__getitem__)
            for rule in ("chain", "entropy", "cost-aware")
        }
        over = speeds["cost-aware"] / speeds[best["chain"]]
        more = (costs.verify_seconds(8) - costs.verify_seconds(0)) / 8 / costs.verify_seconds(0)
        cells = (f"{name}: {speeds[name]:.2f}×, τ {lanes[name].tau:.2f}" for name in best.values())
        lines.append((f"{slope:g}", f"{100 * more:.1f}", *cells, f"{over:.2f}"))
        found = {name: {"speedup": speeds[name], "tau": lanes[name].tau} for name in best.values()}
        rows.append({"slope": slope, "one_more": more, "best": found, "over_chain": over})
    heads = ("slope", "one more guess, % of a pass", "best chain", "best entropy tree", "cost-aware", "over chain")
    show_table(heads, lines)
    write_json(json, {"rows": rows, "costs": asdict(here), "setting": asdict(pair.info), "prompts": prompts})


if __name__ == "__main__":
    run_command(main)
