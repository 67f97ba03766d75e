"""Record what every rule's steps take in passes and bring in tokens, for the page's question whether drafting pays.

    python -m benchmarks.replays --prompts 24

Passes are counted, not timed, so other work on the machine changes nothing but the trees of the cost-aware rule.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command
from specllava.bench.lanes import bench_lanes
from specllava.bench.toy_dialogues import toy_prompts
from specllava.core.config import COMPARED_RULES, DecodingConfig
from specllava.core.files import write_whole
from specllava.core.trace import StepTrace
from specllava.decoding import stream
from specllava.findings.replays import MAX_FILE_BYTES, Replays, ReplayStep, priced
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from visual.player.pays import REPLAYS

WARM_UP = 4  # prompts before the recorded ones: the cost-aware rule learns from them


def record(pair: Pair, prompts: Sequence[Prompt], config: DecodingConfig) -> tuple[tuple[ReplayStep, ...], ...]:
    """Decode the prompts and return the steps of each answer."""
    answers = []
    for prompt in prompts:
        request = pair.request(Lane("recorded", config, prompt), record=False)
        steps = (event for event in stream(request) if isinstance(event, StepTrace))
        answers.append(tuple(ReplayStep.counted(step, request.draft_widths) for step in steps))
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
    table = Table("rule", "τ", "speed-up", "even at τ", title=f"{prompts} prompts, at the costs of {pair.info.device}")
    for rule, kept in answers.items():
        found = priced((step for answer in kept for step in answer), pair.measured_costs)
        table.add_row(rule, f"{found.tau:.2f}", f"{found.speedup:.2f}×", f"{found.break_even:.2f}")
    Console(width=90).print(table)


if __name__ == "__main__":
    run_command(main)
