"""The three mechanisms of Spec-LLaVA (arXiv 2509.11961), each by itself on the toy pair.

    python -m benchmarks.mechanisms --mechanism grounding --json benchmarks/results/mechanism-grounding.json \\
        --picture docs/science-grounding.svg

``grounding``: a draft that sees the picture is in less doubt. ``tree``: with as many guesses a tree gets further than
a chain. ``distillation``: the nearer the draft's distribution is to the target's, the more of its guesses stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal

import torch
from PIL import Image

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
from specllava.cli.options import check_outputs
from specllava.config import DecodingConfig
from specllava.models.drafts.eagle import FeatureDraft
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import blank_picture

NODES: Final = (4, 8, 16)
STEPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the draft before distillation to the one after
NAMES: Final = ("tau", "acceptance", "entropy", "kl")


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismConfig(GuessingConfig):
    """Options of the experiment.

    Args:
        mechanism: all but the tree need a draft VLM, distillation the toy's.
    """

    mechanism: Literal["grounding", "tree", "distillation"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to guess for the same target.

    Args:
        series, place: its line and position in the figure.
        base: number of the variant whose τ its own is compared with.
        picture: what the draft sees in place of a question's own picture and the next question's; its own without it.
    """

    series: str
    place: str
    pair: Pair
    config: DecodingConfig
    base: int = 0
    picture: Callable[[Image.Image, Image.Image], Image.Image] | None = None

    def prompt(self, own: Image.Image, text: str, other: Image.Image) -> Prompt:
        prompt = self.pair.prompt(own, text)
        if self.picture is None:
            return prompt
        shown = self.pair.prompt(self.picture(own, other), text)
        return replace(prompt, draft_prompt=shown.draft_prompt or shown)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a mechanism is shown.

    Args:
        rates: of its panels.
        across: what the places are.
    """

    variants: Callable[[Pair, DecodingConfig], list[Variant]]
    rates: tuple[str, ...]
    across: str


def _grounding(pair: Pair, config: DecodingConfig) -> list[Variant]:
    return [
        Variant(f"{pair.name} pair", "its own", pair, config),
        Variant(f"{pair.name} pair", "a grey one", pair, config, picture=lambda own, other: blank_picture(own)),
        Variant(f"{pair.name} pair", "another", pair, config, picture=lambda own, other: other),
    ]


def _tree(pair: Pair, config: DecodingConfig) -> list[Variant]:
    """Vary the number of guesses, which both rules use up: nothing but their number ends a tree or a chain."""
    free = replace(config, depth=max(NODES), min_log_prob=NO_FLOOR)
    return [
        Variant(name, str(nodes), pair, replace(free, rule=rule, nodes=nodes), base)
        for name, rule in (("chain", "chain"), ("entropy tree", "entropy"))
        for base, nodes in enumerate(NODES)
    ]


@torch.no_grad()
def _distillation(pair: Pair, config: DecodingConfig) -> list[Variant]:
    """Go in a straight line from the weights before distillation to those after it."""
    assert pair.draft is not None
    before = Pair.from_preset("toy-before", dtype="float32")
    assert before.draft is not None
    found = []
    for step in STEPS:
        draft = deepcopy(before.draft)
        for weight, goal in zip(draft.parameters(), pair.draft.parameters(), strict=True):
            weight.lerp_(goal, step)
        found.append(Variant("toy pair", f"{step:g}", replace(pair, draft=draft), config))
    return found


MECHANISMS: Final[dict[str, Mechanism]] = {
    "grounding": Mechanism(_grounding, ("entropy", "kl", "tau"), "picture that the draft sees"),
    "tree": Mechanism(_tree, ("tau", "acceptance"), "guesses of a pass at most"),
    "distillation": Mechanism(_distillation, ("kl", "entropy", "tau"), "way from before distillation (0) to after (1)"),
}


def main(config: MechanismConfig) -> None:
    """Measure every variant on the same prompts, and draw."""
    check_outputs(json=config.json, picture=config.picture)
    mechanism = MECHANISMS[config.mechanism]
    pair = config.load_pair()
    if config.mechanism != "tree" and isinstance(pair.draft, FeatureDraft):
        why = f"the draft {pair.draft_name} reads the target's states"
        raise ValueError(f"{config.mechanism} needs a draft VLM (--draft): {why}")
    variants = mechanism.variants(pair, config.decoding)
    found = rows_of(variants, measure(variants, config))
    heads = ("draft", mechanism.across, "τ", "τ over base", "acceptance", "entropy, nats", "KL, nats")
    lines = [
        (row["series"], row["place"], *cells(row, "tau", "tau_over_base", "acceptance"),
         *cells(row, "entropy", "kl", digits=3))
        for row in found
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    series = {one.series: [row for row in found if row["series"] == one.series] for one in variants}
    places = list(dict.fromkeys(one.place for one in variants))
    draw_rates(config.picture, series, mechanism.rates, places, mechanism.across, config.mechanism != "grounding")


def measure(variants: Sequence[Variant], config: MechanismConfig) -> list[list[Guessing]]:
    """Answer every prompt with every variant; for each variant, an answer for each prompt."""
    answers: list[list[Guessing]] = [[] for _ in variants]
    for (own, text), (other, _) in pairwise(config.questions(more=1)):
        said = None
        for one, done in zip(variants, answers, strict=True):
            prompt = one.prompt(own, text, other)
            said = said or alone(one.pair, prompt, one.config)
            done.append(scored(one.pair, prompt, *speculate(one.pair, prompt, one.config, said)))
    return answers


def rows_of(variants: Sequence[Variant], answers: Sequence[Sequence[Guessing]]) -> list[dict[str, Any]]:
    """Return a row for each variant: its rates, and its τ as a multiple of its base's."""
    return [
        {
            "series": one.series, "place": one.place, **rates(done, NAMES),
            "tau_over_base": over("tau", answers[one.base], done),
        }
        for one, done in zip(variants, answers, strict=True)
    ]  # fmt: skip


if __name__ == "__main__":
    run_command(main, MechanismConfig)
