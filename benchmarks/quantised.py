"""What does a quantised target do to its draft? KL, acceptance and τ with the target's weights at 8, 4, 3 and 2 bits.

    python -m benchmarks.quantised --json benchmarks/results/quantised.json --picture docs/science-quantised.svg

Weights are rounded to the grid of a scheme and computed with in float32, so this runs anywhere and gives the same
numbers. The draft stays as it is. A quantised target is another target, and speculation has to give its own answers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    guess,
    over,
    rates,
    write_rates,
)
from specllava.models.loading.quantization import decoder_weights
from specllava.pair import Pair


@dataclass(frozen=True, slots=True)
class Scheme:
    """A grid of weights, symmetric around 0.

    Args:
        bits: of a weight.
        group: inputs that share a scale; 0 for one scale a row, that is an output channel.
    """

    bits: int
    group: int = 0


SCHEMES: Final[dict[str, Scheme | None]] = {
    "float32": None, "int8": Scheme(8), "int4": Scheme(4, 64), "int3": Scheme(3, 64), "int2": Scheme(2, 64),
}  # fmt: skip


def rounded(weight: Tensor, scheme: Scheme) -> Tensor:
    """Round a weight ``[out, in]``: in each group to the nearest of ``2^bits - 1`` values, evenly spaced around 0.

    Raises:
        ValueError: rows that groups do not fill.
    """
    inputs = weight.shape[1]
    group = scheme.group or inputs
    if inputs % group:
        raise ValueError(f"rows of {inputs} weights cannot be cut into groups of {group}: choose a divisor")
    levels = 2 ** (scheme.bits - 1) - 1
    groups = weight.unflatten(1, (-1, group))  # [out, groups, group]
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny) / levels
    nearest: Tensor = torch.round(groups / scale).clamp(-levels, levels) * scale
    return nearest.flatten(1)


@torch.no_grad()
def quantised(model: PreTrainedModel, scheme: Scheme) -> PreTrainedModel:
    """Return a copy of a model whose decoder has rounded weights; what ``--quantization`` leaves whole stays so."""
    copy = deepcopy(model)
    for module in decoder_weights(copy):
        module.weight.copy_(rounded(module.weight, scheme))
    return copy


def main(config: GuessingConfig) -> None:
    """Measure every scheme on the same prompts, and draw."""
    pair = config.load_pair()
    pairs = {
        name: pair if scheme is None else replace(pair, target=quantised(pair.target, scheme))
        for name, scheme in SCHEMES.items()
    }
    found = measure(pairs, config)
    heads = ("weights of the target", "KL, nats", "over float32", "acceptance", "τ", "over float32", "same answer")
    shown = ("kl_over_float32", "acceptance", "tau", "tau_over_float32", "right")
    show_table(heads, [(name, *cells(row, "kl", digits=3), *cells(row, *shown)) for name, row in found.items()])
    write_rates(config.json, pair, config, found)
    series = {f"{pair.name} pair": list(found.values())}
    draw_rates(config.picture, series, ("kl", "acceptance", "tau"), list(found), "weights of the target")


def measure(pairs: dict[str, Pair], config: GuessingConfig) -> dict[str, dict[str, Any]]:
    """Answer every prompt with every target; ``right`` counts answers that are the whole target's own."""
    answers: dict[str, list[Guessing]] = {name: [] for name in pairs}
    for asked in config.questions():
        unrounded: tuple[int, ...] = ()
        for name, pair in pairs.items():
            prompt = pair.prompt(asked.image, asked.text)
            own = alone(pair, prompt, config.decoding)
            unrounded = unrounded or own.token_ids
            answers[name].append(guess(pair, prompt, config.decoding, own, own.token_ids == unrounded))
    whole, *_ = answers.values()
    return {
        name: rates([[one] for one in own]) | {f"{rate}_over_float32": over(rate, whole, own) for rate in ("kl", "tau")}
        for name, own in answers.items()
    }


if __name__ == "__main__":
    run_command(main, GuessingConfig)
