"""What is left to gain where KL is 0? The target as its own draft, and what that costs in counted passes.

    python -m benchmarks.perfect --json benchmarks/results/perfect.json --picture docs/science-perfect.svg

Chains have no floor: each ends at its depth or with the answer. So length and depth imply how many passes a perfect
draft takes. Any other draft's τ is a share of that one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    guess,
    interval,
    over,
    rates,
    write_rates,
)
from benchmarks.shared.prices import GUESS, LEVEL
from specllava.core.config import DecodingConfig
from specllava.findings.bootstrap import pooled_rate
from specllava.models.drafts.draft_classes import own_draft
from specllava.pair import Pair

DEPTHS: Final = (1, 2, 4, 8, 16)
NO_FLOOR: Final = -50.0  # nats
PRICES: Final = {"speed_free": 0.0, "speed": LEVEL, "speed_whole": 1.0}  # of a draft pass, in target passes
ITSELF = "the target itself"
NAMES: Final = ("tau", "acceptance", "kl", "agreement", "wasted")


def shapes(config: DecodingConfig) -> dict[str, DecodingConfig]:
    """Return chains of every depth, and the entropy tree as it is."""
    chain = replace(config, rule="chain", min_log_prob=NO_FLOOR)
    return {str(depth): replace(chain, depth=depth, nodes=depth) for depth in DEPTHS} | {"tree": config}


def fewest_passes(tokens: int, depth: int) -> int:
    """Return the passes over an answer of a draft that is always right; its first token needs none."""
    return -(-(tokens - 1) // (depth + 1))


def main(config: GuessingConfig) -> None:
    """Measure both drafts with every chain and with a tree, and draw."""
    pair = config.load_pair()
    pairs = {f"the {pair.name} draft": pair, ITSELF: replace(pair, draft=own_draft(pair.target))}
    found = measure(pairs, config)
    heads = ("draft", "depth", "τ", "of the most possible", "acceptance", "KL, nats", "wasted",
             "a draft pass is free", f"costs {LEVEL:g}", "costs 1")  # fmt: skip
    lines = [
        (name, row["shape"], *cells(row, "tau"), *(cells(row, "tau_of_most") if "tau_of_most" in row else ("",)),
         *cells(row, "acceptance"), *cells(row, "kl", digits=4), *cells(row, "wasted", *PRICES))
        for name, rows in found.items() for row in rows
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    names = ("tau", "acceptance", *PRICES)
    draw_rates(config.picture, found, names, list(shapes(config.decoding)), "depth of a chain; tree", joined=False)


def measure(pairs: dict[str, Pair], config: GuessingConfig) -> dict[str, list[dict[str, Any]]]:
    """Answer every prompt with each draft and shape; return a row for each shape."""
    asked = shapes(config.decoding)
    answers: dict[str, dict[str, list[Guessing]]] = {name: {shape: [] for shape in asked} for name in pairs}
    for question in config.questions():
        prompt = next(iter(pairs.values())).prompt(question.image, question.text)
        own = alone(next(iter(pairs.values())), prompt, config.decoding)
        for name, pair in pairs.items():
            for shape, tree in asked.items():
                answers[name][shape].append(guess(pair, prompt, tree, own))
    return {name: [row_of(shape, done) for shape, done in each.items()] for name, each in answers.items()}


def row_of(shape: str, done: Sequence[Guessing]) -> dict[str, Any]:
    """Return the rates of a shape, its speed for each price, and a chain's τ as a share of the most possible one."""
    speeds = {
        name: interval(pooled_rate([(one.emitted, one.cost(price, GUESS)) for one in done]))
        for name, price in PRICES.items()
    }
    row = {"shape": shape, **rates([[one] for one in done], NAMES), **speeds}
    if shape.isdigit():
        most = [replace(one, passes=fewest_passes(one.tokens, int(shape))) for one in done]
        row["tau_of_most"] = over("tau", most, done)
    return row


if __name__ == "__main__":
    run_command(main, GuessingConfig)
