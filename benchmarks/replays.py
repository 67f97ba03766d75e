"""Record what every rule's steps take in passes and bring in tokens, for the page's question whether drafting pays.

    python -m benchmarks.replays --prompts 24

Passes are counted, not timed, so other work on the machine changes nothing but the trees of the cost-aware rule.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from specllava.bench.lanes import bench_lanes
from specllava.bench.toy_dialogues import toy_prompts
from specllava.core.config import COMPARED_RULES, DecodingConfig
from specllava.core.files import write_whole
from specllava.core.growth.cost_model import CostModel
from specllava.core.growth.rules import build_rule
from specllava.core.trace import StepTrace
from specllava.decoding import stream
from specllava.findings.replays import MAX_FILE_BYTES, Replays, ReplayStep, priced
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from visual.player.pays import REPLAYS

WARM_UP = 4  # prompts before the recorded ones: the cost-aware rule learns from them


def record(
    pair: Pair, prompts: Sequence[Prompt], config: DecodingConfig, cost_model: CostModel | None = None
) -> tuple[tuple[ReplayStep, ...], ...]:
    """Decode the prompts and return the steps of each answer.

    Args:
        cost_model: of the rule, in place of the pair's own.
    """
    answers = []
    for prompt in prompts:
        rule = None if cost_model is None else build_rule(config, cost_model)
        request = pair.request(Lane("recorded", config, prompt, rule=rule), record=False)
        steps = (event for event in stream(request) if isinstance(event, StepTrace))
        answers.append(tuple(ReplayStep.counted(step, request.draft_pass_tokens) for step in steps))
    return tuple(answers)


def main(prompts: int = 24, output: Path = REPLAYS) -> None:
    """Record held-out toy prompts and print what their steps are worth at this machine's costs.

    Args:
        prompts: how many are recorded.
        output: the file, which the page and saved pages take along.

    Raises:
        ValueError: the file would be larger than is read.
    """
    pair = Pair.from_preset("toy")
    asked = list(toy_prompts(pair, "held-out", WARM_UP + prompts))
    lanes = bench_lanes(DecodingConfig())
    answers = {rule: record(pair, asked, lanes[rule])[WARM_UP:] for rule in tqdm(COMPARED_RULES, disable=None)}
    replays = Replays(
        f"python -m benchmarks.replays --prompts {prompts}", time.strftime("%Y-%m-%d"), "held-out toy prompts",
        prompts, pair.info, answers,
    )  # fmt: skip
    data = replays.to_json()
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{len(data):,} bytes, and at most {MAX_FILE_BYTES:,} are read: record fewer prompts")
    write_whole(output, data)
    found = {rule: priced(chain.from_iterable(kept), pair.measured_costs) for rule, kept in answers.items()}
    lines = [(rule, f"{one.tau:.2f}", f"{one.speedup:.2f}×", f"{one.break_even:.2f}") for rule, one in found.items()]
    title = f"{prompts} prompts, at the costs of {pair.info.device}"
    show_table(("rule", "τ", "speed-up", "even at τ"), lines, title)


if __name__ == "__main__":
    run_command(main)
