"""What breaks when a draft is surer than it should be, or less sure? Its logits are divided by a temperature.

    python -m benchmarks.confidence --json benchmarks/results/confidence.json

Its likeliest guess stays the same, and so does the target. Only what rules go by changes: probabilities and entropy.
Passes are counted and priced as ``shared/guessing.py`` states.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from benchmarks.calibration import Counts, counted, error_interval
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    NO_FLOOR,
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    over,
    rates,
    scored,
    speculate,
    write_rates,
)
from specllava.bench import bench_lanes
from specllava.cli.options import check_outputs
from specllava.config import DecodingConfig
from specllava.models.drafts.eagle import FeatureDraft
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.trace import DecodeTrace

TEMPERATURES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # below 1 the draft is surer than it was
NAMES: Final = ("tau", "acceptance", "untaken", "speed", "entropy", "kl")
SHOWN: Final = ("tau", "untaken", "speed")


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to guess, with what it was worth on every prompt."""

    temperature: float
    pair: Pair
    config: DecodingConfig
    guessed: list[Guessing] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)

    def answer(self, prompt: Prompt, own: DecodeTrace) -> None:
        trace, levels = speculate(self.pair, prompt, self.config, own)
        self.guessed.append(scored(self.pair, prompt, trace, levels))
        self.counts.append(counted(trace))


@torch.no_grad()
def tempered(draft: PreTrainedModel, temperature: float) -> PreTrainedModel:
    """Return a copy of a draft whose logits are divided by a temperature; its embeddings stay as they are.

    Raises:
        ValueError: a draft that guesses with its target's head.
    """
    copy = deepcopy(draft)
    if isinstance(copy, FeatureDraft):
        if not copy.config.own_head:
            raise ValueError("the draft has its target's head, so its logits cannot be scaled apart: choose another")
        copy.lm_head.weight /= temperature
        return copy
    head = copy.get_output_embeddings()
    scaled = nn.Linear(head.in_features, head.out_features, bias=False, device=head.weight.device)
    scaled.weight = nn.Parameter(head.weight / temperature, requires_grad=False)
    copy.set_output_embeddings(scaled)
    return copy


def lanes(config: DecodingConfig) -> dict[str, DecodingConfig]:
    """Return the rules that are compared, each as it suits the toy pair."""
    usual = bench_lanes(config)
    free = replace(usual["entropy"], min_log_prob=NO_FLOOR)
    return {"entropy": usual["entropy"], "entropy, no floor": free, "topk": usual["topk"]}


def main(config: GuessingConfig) -> None:
    """Measure every rule with every temperature, and draw; the base is the rule without one."""
    check_outputs(json=config.json, picture=config.picture)
    pair = config.load_pair()
    if pair.draft is None:
        raise ValueError(f"{pair.name} has no draft to be tempered: choose another --preset")
    pairs = {one: replace(pair, draft=tempered(pair.draft, one)) for one in TEMPERATURES}
    asked = lanes(config.decoding)
    trials = {name: [Trial(one, pairs[one], lane) for one in TEMPERATURES] for name, lane in asked.items()}
    measure(pair, [one for group in trials.values() for one in group], config)
    found = {name: rows_of(group) for name, group in trials.items()}
    shown = ("ece", "tau", "tau_over_base", "untaken", "speed", "speed_over_base")
    heads = ("rule", "T", "ECE", "τ", "over base", "nobody takes", "speed", "over base")
    lines = [(name, f"{row['temperature']:g}", *cells(row, *shown)) for name, rows in found.items() for row in rows]
    show_table(heads, lines)
    write_rates(config.json, pair, config, {"rules": found})
    places = [f"{one:g}" for one in TEMPERATURES]
    draw_rates(config.picture, found, ("ece", *SHOWN), places, "temperature of the draft's logits")


def measure(pair: Pair, trials: Sequence[Trial], config: GuessingConfig) -> None:
    """Answer every prompt with every trial."""
    for asked in config.questions():
        prompt = pair.prompt(*asked)
        own = alone(pair, prompt, config.decoding)
        for trial in trials:
            trial.answer(prompt, own)


def rows_of(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return a row for each temperature, its rates also as multiples of those at 1."""
    base = next(one.guessed for one in trials if one.temperature == 1)
    return [
        {
            "temperature": one.temperature, "ece": error_interval(one.counts), **rates(one.guessed, NAMES),
            **{f"{rate}_over_base": over(rate, base, one.guessed) for rate in ("tau", "speed")},
        }
        for one in trials
    ]  # fmt: skip


if __name__ == "__main__":
    run_command(main, GuessingConfig)
