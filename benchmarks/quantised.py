"""What does a quantised target do to its draft? KL, acceptance and τ with the target's weights at 8, 4, 3 and 2 bits.

    python -m benchmarks.quantised --json benchmarks/results/quantised.json --picture docs/science-quantised.svg

Weights are rounded to the grid of a scheme and computed with in float32, so this runs anywhere and gives the same
numbers. The draft stays as it is. A quantised target is another target, and speculation has to give its own answers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
import tyro
from rich.console import Console
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from benchmarks.guessing import RATES, Guessing, alone, guess, interval, rates, told, write_found
from benchmarks.intervals import Panel, interval_figure
from benchmarks.markdown import markdown
from benchmarks.svg import write_svg
from specllava.core.config import DecodingConfig
from specllava.findings.bootstrap import pooled_ratio
from specllava.models.loading.quantization import decoder_weights
from specllava.pair import Pair
from specllava.toyworld.scene_questions import scene_questions


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


@dataclass(frozen=True, slots=True)
class QuantisedConfig:
    """What is measured.

    Args:
        prompts: held-out ones, most of them for a description.
    """

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    prompts: int = 30
    json: Path | None = None
    picture: Path | None = None


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


def main(config: QuantisedConfig) -> None:
    """Measure every scheme on the same prompts, and draw."""
    pair = Pair.from_preset("toy", dtype="float32")
    pairs = {
        name: pair if scheme is None else replace(pair, target=quantised(pair.target, scheme), costs=None)
        for name, scheme in SCHEMES.items()
    }
    found = measure(pairs, config)
    Console().print(table(found), markup=False, highlight=False, soft_wrap=True)
    write_found(config.json, pair, config, {"rows": found})
    if config.picture is not None:
        titles = {
            "kl": "KL(target ‖ draft), nats per token", "acceptance": "acceptance, share of guesses",
            "tau": "τ, tokens per target pass",
        }  # fmt: skip
        panels = [Panel(title, {"toy pair": [row[rate] for row in found.values()]}) for rate, title in titles.items()]
        write_svg(interval_figure(panels, list(found), "weights of the target"), config.picture)


def measure(pairs: dict[str, Pair], config: QuantisedConfig) -> dict[str, dict[str, Any]]:
    """Answer every prompt with every target; ``right`` counts answers that are the whole target's own."""
    answers: dict[str, list[list[Guessing]]] = {name: [] for name in pairs}
    for asked in tqdm(scene_questions("held-out", config.prompts), "prompts", config.prompts):
        unrounded: tuple[int, ...] = ()
        for name, pair in pairs.items():
            prompt = pair.prompt(asked.image, asked.text)
            own = alone(pair, prompt, config.decoding)
            unrounded = unrounded or own.token_ids
            answers[name].append([guess(pair, prompt, config.decoding, own, own.token_ids == unrounded)])
    (whole, *_) = answers.values()
    return {
        name: rates(clusters) | {f"{rate}_over_float32": over(rate, whole, clusters) for rate in ("kl", "tau")}
        for name, clusters in answers.items()
    }


def over(rate: str, whole: list[list[Guessing]], clusters: list[list[Guessing]]) -> dict[str, float]:
    """Return a rate as a multiple of that of the whole target on the same prompts."""
    base, own = ([RATES[rate](one) for (one,) in answers] for answers in (whole, clusters))
    return interval(pooled_ratio(base, own))


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return a row for each scheme."""
    heads = ("weights of the target", "KL, nats", "over float32", "acceptance", "τ", "over float32", "same answer")
    shown = ("kl_over_float32", "acceptance", "tau", "tau_over_float32", "right")
    lines = [
        (name, told(row["kl"], 3), *(told(row[rate]) for rate in shown))
        for name, row in found.items()
    ]
    return markdown(heads, lines)


if __name__ == "__main__":
    main(tyro.cli(QuantisedConfig, description=__doc__))
