"""What a draft's guesses were worth on one answer, and pooled over many with intervals: what every experiment reports.

Each answer is decoded twice, speculatively and by the target alone, and has to be the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from tqdm.auto import tqdm

from benchmarks.shared.intervals import Panel, interval_figure
from benchmarks.shared.pictures import write_svg
from recipes.toy.datasets import held_out_questions
from specllava.cli.options import write_json
from specllava.config import DecodingConfig
from specllava.metrics import Part, Ratio, compare, pooled, pooled_ratio, summarise
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.spec_decode.loop import Lane, run_lanes
from specllava.trace import DecodeTrace, StepTrace

LEVEL: Final = 0.1  # price of a pass of the draft, in target passes over one token
GUESS: Final = 0.01  # of one more guess in a target pass
NO_FLOOR: Final = -50.0  # nats: no guess is too unlikely


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessingConfig:
    """Options of an experiment.

    Args:
        prompts: held-out ones, see :meth:`questions`.
        preset: pair that is asked.
        draft: directory of another draft for it.
    """

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    prompts: int = 30
    preset: str = "toy"
    draft: Path | None = None
    json: Path | None = None
    picture: Path | None = None

    def load_pair(self) -> Pair:
        """Load the pair in float32."""
        pair = Pair.from_preset(self.preset, dtype="float32")
        return pair if self.draft is None else pair.with_draft(self.draft)

    def questions(self, more: int = 0) -> Iterator[tuple[Image.Image, str]]:
        """Yield the held-out questions, and as many ``more``: see :func:`held_out_questions`."""
        yield from tqdm(held_out_questions(self.preset, self.prompts + more), "prompts", self.prompts + more)


@dataclass(frozen=True, slots=True)
class Guessing:
    """Counts of one answer and the draft's guesses for it.

    Args:
        tokens: of the answer.
        emitted, passes: tokens that steps emitted, and target passes.
        drafted, accepted: tokens guessed, and those accepted.
        entropy, divergence: sums over the answer's tokens, in nats: of the draft, and KL(target ‖ draft).
        levels: passes of the draft, one for each level of a tree.
    """

    tokens: int
    emitted: int
    passes: int
    drafted: int
    accepted: int
    entropy: float
    divergence: float
    levels: int

    @property
    def cost(self) -> float:
        """What the steps cost at stated prices, in target passes over one token."""
        return self.passes + LEVEL * self.levels + GUESS * self.drafted


# Numerator and denominator of every rate, by its name in results.
RATES: Final[dict[str, Callable[[Guessing], tuple[float, float]]]] = {
    "tau": lambda one: (one.emitted, one.passes),
    "acceptance": lambda one: (one.accepted, one.drafted),
    "entropy": lambda one: (one.entropy, one.tokens),
    "kl": lambda one: (one.divergence, one.tokens),
    "untaken": lambda one: (one.drafted - one.accepted, one.drafted),
    "speed": lambda one: (one.emitted, one.cost),
}
TITLES: Final = {
    "tau": "τ, tokens per target pass", "entropy": "entropy of the draft, nats",
    "kl": "KL(target ‖ draft), nats per token", "acceptance": "acceptance, share of guesses",
    "untaken": "guesses that nobody takes, share", "speed": "speed, a draft pass costs 0.1",
    "ece": "calibration error (ECE)",
}  # fmt: skip


def alone(pair: Pair, prompt: Prompt, config: DecodingConfig) -> DecodeTrace:
    """Return the target's own answer."""
    return pair.run(Lane("target-only", replace(config, drafter="none"), prompt))


def speculate(
    pair: Pair, prompt: Prompt, config: DecodingConfig, own: DecodeTrace
) -> tuple[DecodeTrace, int]:
    """Answer a prompt speculatively; return the trace, and the number of the draft's passes.

    Args:
        own: the target's own answer, see :func:`alone`.

    Raises:
        AssertionError: other tokens than the target's own.
    """
    request = pair.request(Lane("speculative", config, prompt))
    events, levels = [], 0
    for event in run_lanes([request]):
        events.append(event)
        levels += len(request.drafter.pass_tokens) if isinstance(event.item, StepTrace) else 0
    trace = pair.collect(events)["speculative"]
    same = compare(own, trace)
    if not same.identical:
        where = f"token {same.position}, at a margin of {same.margin}"
        raise AssertionError(f"{where}, is not the target's own: {trace.text}")
    return trace, levels


@torch.inference_mode()
def scored(pair: Pair, prompt: Prompt, trace: DecodeTrace, levels: int) -> Guessing:
    """Score the draft on an answer that :func:`speculate` gave."""
    answer = trace.token_ids
    assert pair.draft is not None, "the pair has no draft to be scored"
    ours = draft_log_probs(pair.target, pair.draft, prompt, answer)
    scores = score_draft(ours, teacher_forced_log_probs(pair.target, prompt, answer))
    counts = summarise([trace])
    counted = len(answer), counts.step_tokens, counts.target_passes, counts.drafted, counts.accepted
    entropy = float(torch.special.entr(ours.exp()).sum())
    return Guessing(*counted, entropy, math.fsum(scores.divergences), levels)


def rates(answers: Sequence[Guessing], names: Sequence[str]) -> dict[str, Any]:
    """Pool answers, and give each rate its 95 % interval of the bootstrap over answers."""
    pools = {name: pooled_rate([RATES[name](one) for one in answers]) for name in names}
    return {"answers": len(answers), **{name: interval(pool) for name, pool in pools.items()}}


def over(rate: str, base: Sequence[Guessing], own: Sequence[Guessing]) -> dict[str, float]:
    """Return a rate as a multiple of that of other answers to the same prompts, with its interval."""
    return interval(pooled_ratio([RATES[rate](one) for one in base], [RATES[rate](one) for one in own]))


def interval(ratio: Ratio) -> dict[str, float]:
    """Return value and ends for a file of results."""
    return {name: round(value, 5) for name, value in asdict(ratio).items()}


def cells(row: Mapping[str, Any], *names: str, digits: int = 2) -> tuple[str, ...]:
    """Return rates with their intervals as cells of a table."""
    found = (row[name] for name in names)
    return tuple(f"{one['value']:.{digits}f} ({one['low']:.{digits}f} to {one['high']:.{digits}f})" for one in found)


def write_rates(path: Path | None, pair: Pair, options: Any, rows: Any) -> None:
    """Write the rates of an experiment with its setting and date."""
    facts = {"setting": asdict(pair.info), "date": datetime.now(UTC).date().isoformat()}
    write_json(path, {"rows": _without_nan(rows), "options": _without_files(asdict(options)), **facts})


def _without_nan(rows: Any) -> Any:
    """Put ``None`` where there is no number, for which JSON has no sign."""
    if isinstance(rows, Mapping):
        return {name: _without_nan(row) for name, row in rows.items()}
    if isinstance(rows, list):
        return [_without_nan(row) for row in rows]
    return None if isinstance(rows, float) and math.isnan(rows) else rows


def draw_rates(
    path: Path | None, series: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str], places: Sequence[str],
    across: str, joined: bool = True,
) -> None:  # fmt: skip
    """Draw a panel of intervals for each rate.

    Args:
        series: rows of rates, one for each of ``places``; a row without a rate has no mark.
        names: rates.
        across: title of the horizontal axis.
        joined: join a series by lines.
    """
    if path is not None:
        panels = [Panel(TITLES[name], _points(series, name)) for name in names]
        write_svg(interval_figure(panels, places, across, joined), path)


def _points(series: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> dict[str, list[Any]]:
    found = {line: [row.get(name) for row in rows] for line, rows in series.items()}
    return {line: points for line, points in found.items() if any(points)}


def _without_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out paths of this machine; the setting names target and draft."""
    return {
        name: _without_files(value) if isinstance(value, dict) else value
        for name, value in options.items()
        if not isinstance(value, Path) and value is not None
    }


def pooled_rate(parts: Sequence[Part]) -> Ratio:
    """Return a rate, the total of its numerators over the total of its denominators, with its interval over prompts."""
    return pooled([parts], lambda rates: rates[..., 0])
