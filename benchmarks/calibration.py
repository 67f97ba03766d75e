"""How often does the target take a guess, by the probability that the draft gave it? By rank and depth, for each draft.

    python -m benchmarks.calibration --json benchmarks/results/calibration.json \\
        --picture docs/science-calibration-rank.svg

A guess counts if the target took what stands before it. Trees are wide, so that ranks and depths are all tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import alone, cells, interval, pooled_rate, speculate, write_rates
from benchmarks.shared.intervals import Panel, interval_figure
from benchmarks.shared.pictures import write_svg
from recipes.toy.datasets import held_out_questions
from specllava.cli.options import check_outputs
from specllava.config import DecodingConfig
from specllava.metrics import LEVEL, RESAMPLES, judged_nodes
from specllava.pair import Pair
from specllava.trace import DecodeTrace

BINS: Final = 10  # of probability, equally wide
GROUPS: Final = {
    "depth": ("level 1", "levels 2 to 4", "level 5 or deeper"),
    "rank": ("best guess", "second", "third or later"),
}
LAST_LEVELS: Final = (1, 4)  # of the first two groups
FEWEST: Final = 20  # guesses of a mark
# Tested and accepted guesses, and the draft's probabilities added up: [groupings, groups, bins of probability, 3].
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CalibrationConfig:
    """Options of the experiment.

    Args:
        prompts: held-out ones, see :func:`recipes.toy.datasets.held_out_questions`.
        presets: pairs, which are all asked what suits the first.
        picture: file for the curves by rank.
        depths: file for those by depth.
    """

    decoding: DecodingConfig = field(
        default_factory=lambda: DecodingConfig(rule="topk", depth=8, width=4, nodes=32, max_new_tokens=96)
    )
    prompts: int = 30
    presets: tuple[str, ...] = ("toy", "toy-before", "toy-eagle")
    json: Path | None = None
    picture: Path | None = None
    depths: Path | None = None


def main(config: CalibrationConfig) -> None:
    """Measure every shipped draft on the same prompts, and draw."""
    check_outputs(json=config.json, picture=config.picture, depths=config.depths)
    counts: dict[str, list[Counts]] = {name: [] for name in config.presets}
    pairs = {name: Pair.from_preset(name, dtype="float32") for name in config.presets}
    for asked in tqdm(held_out_questions(config.presets[0], config.prompts), "prompts", config.prompts):
        for name, pair in pairs.items():
            prompt = pair.prompt(*asked)
            trace, _ = speculate(pair, prompt, config.decoding, alone(pair, prompt, config.decoding))
            counts[name].append(counted(trace))
    found: dict[str, dict[str, Any]] = {
        name: {"ece": error_interval(own), "marks": marks(own)} for name, own in counts.items()
    }
    heads = ("draft", "ECE", "by", "group", "probability", "guesses", "accepted")
    lines = [
        (name, *cells(facts, "ece", digits=3), mark["by"], mark["group"], f"{mark['promised']:.2f}",
         str(mark["tested"]), *cells(mark, "accepted"))
        for name, facts in found.items() for mark in facts["marks"]
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pairs[config.presets[0]], config, found)
    draw(config.picture, found, "rank")
    draw(config.depths, found, "depth")


def counted(trace: DecodeTrace, bins: int = BINS) -> Counts:
    """Count the guesses of an answer whose parent was accepted; ``bins`` of probability are equally wide."""
    found = np.zeros((2, 3, bins, 3))
    for step in trace.steps:
        path, ranks = set(step.emitted_nodes), step.tree.sibling_ranks()
        for judged in judged_nodes(step):
            depth = sum(judged.position >= last for last in LAST_LEVELS)
            for node in judged.children:
                prob = math.exp(step.tree.log_probs[node])
                for way, group in enumerate((depth, min(ranks[node], 2))):
                    found[way, group, min(int(prob * bins), bins - 1)] += 1, node in path, prob
    return found


def marks(answers: Sequence[Counts]) -> list[dict[str, Any]]:
    """Pool answers: of each group and bin the share that was accepted, and the mean probability."""
    found = []
    for way, (by, groups) in enumerate(GROUPS.items()):
        for group, number in product(range(len(groups)), range(BINS)):
            parts = [one[way, group, number].tolist() for one in answers]
            tested, _, promised = map(math.fsum, zip(*parts, strict=True))
            if tested:
                found.append({
                    "by": by, "group": groups[group], "bin": number, "tested": int(tested),
                    "promised": round(promised / tested, 5),
                    "accepted": interval(pooled_rate([(taken, count) for count, taken, _ in parts])),
                })  # fmt: skip
    return found


def error_interval(answers: Sequence[Counts]) -> dict[str, float]:
    """Return the expected calibration error of pooled answers with its 95 % interval of the bootstrap over answers.

    Drawing answers anew adds noise to shares whose distance is taken without its sign, so intervals lean upwards.
    """
    parts = np.array([one[0].sum(0) for one in answers])  # [answers, bins, 3]: each grouping has every guess
    drawn = np.random.default_rng(0).integers(len(parts), size=(RESAMPLES, len(parts)))
    errors = _errors(parts[drawn].sum(axis=1))
    errors = errors[np.isfinite(errors)]  # draws of answers without a guess have none
    low, high = np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if errors.size else (np.nan, np.nan)
    ends = {"value": float(_errors(parts.sum(axis=0))), "low": float(low), "high": float(high)}
    return {name: round(end, 5) for name, end in ends.items()}


def _errors(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the errors ``[...]`` of totals ``[..., bins, 3]``."""
    off: npt.NDArray[np.float64] = np.abs(totals[..., 1] - totals[..., 2]).sum(-1)
    with np.errstate(invalid="ignore"):
        off /= totals[..., 0].sum(-1)
    return off


def draw(path: Path | None, found: dict[str, Any], by: str) -> None:
    """Draw a panel for each draft: the accepted share against the probability, and where they would be equal."""
    if path is None:
        return
    middles = [(number + 0.5) / BINS for number in range(BINS)]
    equal = [{"value": one, "low": one, "high": one} for one in middles]
    panels = []
    for name, facts in found.items():
        lines: dict[str, list[Any]] = {group: [None] * BINS for group in GROUPS[by]}
        for mark in facts["marks"]:
            if mark["by"] == by and mark["tested"] >= FEWEST:
                lines[mark["group"]][mark["bin"]] = mark["accepted"]
        panels.append(Panel(f"{name}: share accepted", {**lines, "as promised": equal}))
    places = [f"{middle:.2f}"[1:] for middle in middles]  # without the 0, so that ten of them fit
    write_svg(interval_figure(panels, places, "probability by the draft"), path)


if __name__ == "__main__":
    run_command(main, CalibrationConfig)
