"""How often does the target take a guess, by the probability that the draft gave it? By rank and depth, for each draft.

    python -m benchmarks.calibration --json benchmarks/results/calibration.json \\
        --picture docs/science-calibration-rank.svg

A guess counts if the target took what stands before it. Trees are wide, so that ranks and depths are all tried.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    alone,
    cells,
    held_out_questions,
    interval,
    pooled_rate,
    speculate,
    write_rates,
)
from benchmarks.shared.intervals import Panel, interval_figure
from benchmarks.shared.pictures import write_svg
from specllava.cli.options import check_outputs
from specllava.config import DecodingConfig
from specllava.metrics import LEVEL, RESAMPLES, judged_nodes
from specllava.pair import Pair
from specllava.trace import DecodeTrace

BINS: Final = 10  # of probability, equally wide
RANKS: Final = ("best guess", "second", "third or later")
DEPTHS: Final = ("level 1", "levels 2 to 4", "level 5 or deeper")
LAST_LEVELS: Final = (1, 4)  # of the first two groups
FEWEST: Final = 20  # guesses of a mark
PROMISED: Final = "as promised"
Mark = tuple[str, str, int]  # draft's way of grouping, group, number of the bin of probability
Counts = dict[Mark, tuple[int, int, float]]  # tested, accepted, and the draft's probabilities added up


@dataclass(frozen=True, slots=True)
class CalibrationConfig:
    """Options of the experiment.

    Args:
        prompts: held-out ones, see :func:`benchmarks.shared.guessing.held_out_questions`.
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
    bins: dict[str, list[Sequence[Bin]]] = {name: [] for name in config.presets}
    pairs = {name: Pair.from_preset(name, dtype="float32") for name in config.presets}
    for asked in tqdm(held_out_questions(config.presets[0], config.prompts), "prompts", config.prompts):
        for name, pair in pairs.items():
            prompt = pair.prompt(asked.image, asked.text)
            trace, _ = speculate(pair, prompt, config.decoding, alone(pair, prompt, config.decoding))
            counts[name].append(counted(trace))
            bins[name].append(reliability([trace], BINS))
    found: dict[str, dict[str, Any]] = {
        name: {"ece": error_interval(bins[name]), "marks": marks(counts[name])} for name in config.presets
    }
    heads = ("draft", "ECE", "by", "group", "probability", "guesses", "accepted")
    lines = [
        (name, *cells(facts, "ece", digits=3), mark["by"], mark["group"], f"{mark['promised']:.2f}",
         str(mark["tested"]), *cells(mark, "accepted"))
        for name, facts in found.items() for mark in facts["marks"]
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pairs[config.presets[0]], config, found)
    draw(config.picture, found, "rank", RANKS)
    draw(config.depths, found, "depth", DEPTHS)


def counted(trace: DecodeTrace) -> Counts:
    """Count the guesses of an answer by group and bin."""
    found: defaultdict[Mark, tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for rank, depth, prob, accepted in verdicts(trace):
        for mark in (("rank", RANKS[min(rank, 2)]), ("depth", DEPTHS[sum(depth > last for last in LAST_LEVELS)])):
            key = (*mark, min(int(prob * BINS), BINS - 1))
            tested, taken, promised = found[key]
            found[key] = tested + 1, taken + accepted, promised + prob
    return dict(found)


def verdicts(trace: DecodeTrace) -> Iterator[tuple[int, int, float, bool]]:
    """Yield rank (from 0), depth (from 1), the draft's probability and the verdict of each guess that was tested."""
    for step in trace.steps:
        path, ranks = set(step.emitted_nodes), step.tree.sibling_ranks()
        for judged in judged_nodes(step):
            for node in judged.children:
                yield ranks[node], judged.position + 1, math.exp(step.tree.log_probs[node]), node in path


def marks(answers: Sequence[Counts]) -> list[dict[str, Any]]:
    """Pool answers: of each group and bin the share that was accepted, and the mean probability."""
    found = []
    for mark in sorted(set().union(*answers)):
        by, group, number = mark
        parts = [one.get(mark, (0, 0, 0.0)) for one in answers]
        tested = sum(count for count, _, _ in parts)
        found.append({
            "by": by, "group": group, "bin": number, "tested": tested,
            "promised": round(math.fsum(prob for _, _, prob in parts) / tested, 5),
            "accepted": interval(pooled_rate([(taken, count) for count, taken, _ in parts])),
        })  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class Bin:
    """Guesses to which the draft gave about the same probability.

    Args:
        tested: guesses whose parent was accepted.
        accepted: those of them that were accepted too.
        promised: the draft's probabilities of all tested ones, added up.
    """

    tested: int = 0
    accepted: int = 0
    promised: float = 0.0


def reliability(traces: Iterable[DecodeTrace], bins: int = 10) -> tuple[Bin, ...]:
    """Tested guesses by the draft's probability, in ``bins`` equal steps from 0 to 1."""
    counted = [Bin()] * bins
    for trace in traces:
        for _, _, q, accepted in verdicts(trace):
            index = min(int(q * bins), bins - 1)
            old = counted[index]
            counted[index] = Bin(old.tested + 1, old.accepted + accepted, old.promised + q)
    return tuple(counted)


def error_interval(answers: Sequence[Sequence[Bin]]) -> dict[str, float]:
    """Return the expected calibration error of pooled answers with its 95 % interval of the bootstrap over answers.

    Drawing answers anew adds noise to shares whose distance is taken without its sign, so intervals lean upwards.

    Args:
        answers: the bins of each, as :func:`reliability` counts them.
    """
    parts = np.array([[(one.tested, one.accepted, one.promised) for one in bins] for bins in answers])
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


def draw(path: Path | None, found: dict[str, Any], by: str, groups: Sequence[str]) -> None:
    """Draw a panel for each draft: the accepted share against the probability, and where they would be equal."""
    if path is None:
        return
    middles = [(number + 0.5) / BINS for number in range(BINS)]
    equal = [{"value": one, "low": one, "high": one} for one in middles]
    panels = []
    for name, facts in found.items():
        lines: dict[str, list[Any]] = {group: [None] * BINS for group in groups}
        for mark in facts["marks"]:
            if mark["by"] == by and mark["tested"] >= FEWEST:
                lines[mark["group"]][mark["bin"]] = mark["accepted"]
        panels.append(Panel(f"{name}: share accepted", {**lines, PROMISED: equal}))
    places = [f"{middle:.2f}"[1:] for middle in middles]  # without the 0, so that ten of them fit
    write_svg(interval_figure(panels, places, "probability by the draft"), path)


if __name__ == "__main__":
    run_command(main, CalibrationConfig)
