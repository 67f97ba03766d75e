"""What breaks when a draft is surer than it should be, or less sure? Its logits are divided by a temperature.

    python -m benchmarks.confidence --json benchmarks/results/confidence.json --picture docs/science-confidence.svg

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

from benchmarks.shared.calibration import BINS, error_interval
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
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
from specllava.bench.lanes import bench_lanes
from specllava.core.config import DecodingConfig
from specllava.core.metrics import Bin, reliability
from specllava.core.trace import DecodeTrace
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt

TEMPERATURES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # below 1 the draft is surer than it was
THRESHOLDS: Final = (0.05, 1.0, 2.0)  # nats, beside the default
NO_FLOOR: Final = -50.0  # nats
NAMES: Final = ("tau", "acceptance", "untaken", "wasted", "speed", "entropy", "kl", "agreement")
SHOWN: Final = ("tau", "untaken", "speed")


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to guess, with what it was worth on every prompt."""

    temperature: float
    pair: Pair
    config: DecodingConfig
    guessed: list[Guessing] = field(default_factory=list)
    bins: list[Sequence[Bin]] = field(default_factory=list)

    def answer(self, prompt: Prompt, own: DecodeTrace) -> None:
        trace, levels = speculate(self.pair, prompt, self.config, own)
        self.guessed.append(scored(self.pair, prompt, trace, levels))
        self.bins.append(reliability([trace], BINS))


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
    """Measure every rule with every temperature, then the entropy rule with every threshold, and draw."""
    pair = config.load_pair()
    pairs = {one: replace(pair, draft=tempered(_draft(pair), one)) for one in TEMPERATURES}
    asked = lanes(config.decoding)
    trials = {name: [Trial(one, pairs[one], lane) for one in TEMPERATURES] for name, lane in asked.items()}
    grid = {
        (name, threshold): [
            Trial(one, pairs[one], replace(asked[name], entropy_threshold=threshold)) for one in TEMPERATURES
        ]
        for name in ("entropy", "entropy, no floor")
        for threshold in THRESHOLDS
    }
    measure(pair, [one for group in (*trials.values(), *grid.values()) for one in group], config)
    base = [_at_one(group) for group in trials.values()]
    found = {name: rows_of(group, one) for (name, group), one in zip(trials.items(), base, strict=True)}
    repaired = [
        {"rule": name, "threshold": threshold, **row}
        for (name, threshold), group in grid.items()
        for row in rows_of(group, base[0])
    ]
    show(found, repaired)
    write_rates(config.json, pair, config, {"rules": found, "thresholds": repaired})
    places = [f"{one:g}" for one in TEMPERATURES]
    draw_rates(config.picture, found, ("ece", *SHOWN), places, "temperature of the draft's logits")


def measure(pair: Pair, trials: Sequence[Trial], config: GuessingConfig) -> None:
    """Answer every prompt with every trial."""
    for asked in config.questions():
        prompt = pair.prompt(asked.image, asked.text)
        own = alone(pair, prompt, config.decoding)
        for trial in trials:
            trial.answer(prompt, own)


def rows_of(trials: Sequence[Trial], base: Sequence[Guessing]) -> list[dict[str, Any]]:
    """Return a row for each temperature, its rates also as multiples of a base's."""
    return [
        {
            "temperature": one.temperature, "ece": error_interval(one.bins), **rates([[g] for g in one.guessed], NAMES),
            **{f"{rate}_over_base": over(rate, base, one.guessed) for rate in ("tau", "speed")},
        }
        for one in trials
    ]  # fmt: skip


def show(found: dict[str, list[dict[str, Any]]], repaired: Sequence[dict[str, Any]]) -> None:
    """Print both tables; the base is the rule without a temperature, of thresholds the entropy rule as it is."""
    shown = ("ece", "tau", "tau_over_base", "untaken", "speed", "speed_over_base")
    heads = ("T", "ECE", "τ", "over base", "nobody takes", "speed", "over base")
    lines = [(name, f"{row['temperature']:g}", *cells(row, *shown)) for name, rows in found.items() for row in rows]
    show_table(("rule", *heads), lines)
    where = [(row["rule"], f"{row['threshold']:g}", f"{row['temperature']:g}", *cells(row, *shown)) for row in repaired]
    show_table(("rule", "threshold", *heads), where, "Thresholds of the entropy rule")


def _at_one(trials: Sequence[Trial]) -> list[Guessing]:
    return next(one.guessed for one in trials if one.temperature == 1)


def _draft(pair: Pair) -> PreTrainedModel:
    assert pair.draft is not None
    return pair.draft


if __name__ == "__main__":
    run_command(main, GuessingConfig)
