"""How often the target takes the draft's best guess, its second, and so on: what sequoia's tree is made for.

    python -m benchmarks.ranks --prompts 40
"""

from __future__ import annotations

from rich.console import Console

from benchmarks.shared.command import run_command
from specllava.bench.toy_dialogues import toy_prompts
from specllava.core.config import DecodingConfig
from specllava.core.metrics import acceptance_by_rank
from specllava.lane import Lane
from specllava.pair import Pair

RANKS = 4


def main(prompts: int = 40, preset: str = "toy") -> None:
    """Measure on scenes of known combinations, with trees one level deep, so that every rank is tried everywhere.

    Args:
        prompts: how many.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    config = DecodingConfig(rule="topk", depth=1, width=RANKS, nodes=RANKS)
    traces = [pair.run(Lane("topk", config, prompt)) for prompt in toy_prompts(pair, "train", prompts)]
    for rank, (taken, tried) in acceptance_by_rank(traces).items():
        Console().print(f"rank {rank}: {taken} of {tried} = {taken / tried:.3f}")


if __name__ == "__main__":
    run_command(main)
