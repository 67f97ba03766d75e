"""Results of a benchmark's lanes: totals, ratios of totals and their intervals.

Ratios are total over total, never a mean of ratios; intervals are of the bootstrap over dialogues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from specllava.bench.measured import Measured
from specllava.bench.timed_run import TimedRun
from specllava.metrics import NEAR_TIE_MARGIN, RunTotals, pool_totals
from specllava.trace import TARGET_ONLY
from specllava.findings.bootstrap import Part, Ratio, pooled_ratio

TOKEN_FIELDS: Final = ("runs", "tokens", "mismatches", "ties", "margins")  # of a report about tokens alone
Margins = Mapping[tuple[int, int], float]  # by prompt and position


def totals_of(runs: Sequence[TimedRun]) -> RunTotals:
    """Add up the runs of a lane."""
    return pool_totals(
        RunTotals(
            runs=1,
            tokens=len(run.token_ids),
            target_passes=len(run.steps),
            drafted=sum(step.target_width - 1 for step in run.steps),
            accepted=sum(step.accepted for step in run.steps),
            decode_seconds=run.decode_seconds,
            prefill_seconds=run.vision_seconds + run.read_seconds,
            draft_seconds=math.fsum(step.draft for step in run.steps),
            verify_seconds=math.fsum(step.verify for step in run.steps),
            keep_seconds=math.fsum(step.keep for step in run.steps),
            vision_seconds=run.vision_seconds,
            wall_seconds=run.wall_seconds,
            first_tokens=run.first_tokens,
            draft_passes=sum(len(step.draft_widths) for step in run.steps),
        )
        for run in runs
    )


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A lane, compared with the fastest lane of the target alone.

    Args:
        speedup: tokens per second after the prefill, over that lane's.
        end_to_end: tokens per second of whole runs, over that lane's.
        per_token: seconds per token after the prefill.
        mismatches, ties: runs whose tokens differ from target-only's, by whether the target's margin at the first
            difference is that of a near-tie.
        margins: the target's margins there, ``None`` where one answer is the beginning of the other.
    """

    totals: RunTotals
    speedup: Ratio
    end_to_end: Ratio
    per_token: Ratio
    mismatches: int
    ties: int
    margins: tuple[float | None, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the lane's row of ``bench --json``; times in milliseconds, levels and guesses per target pass."""
        totals = self.totals
        passes, tokens, runs = max(1, totals.target_passes), max(1, totals.tokens), max(1, totals.runs)
        per_run = {"ms_vision": totals.vision_seconds, "ms_prefill": totals.prefill_seconds}
        per_pass = {
            "ms_draft": totals.draft_seconds, "ms_verify": totals.verify_seconds, "ms_keep": totals.keep_seconds,
        }  # fmt: skip
        return {
            "tau": _number(totals.tau),
            "ms_per_token": _number(1e3 * self.per_token.value),
            "ms_per_token_interval": _interval(self.per_token, 1e3),
            **{name: 1e3 * seconds / runs for name, seconds in per_run.items()},
            "ms_per_token_end_to_end": 1e3 * (totals.prefill_seconds + totals.decode_seconds) / tokens,
            "ms_per_token_wall": 1e3 * totals.wall_seconds / tokens,
            "levels": totals.draft_passes / passes,
            "guesses": totals.drafted / passes,
            **{name: 1e3 * seconds / passes for name, seconds in per_pass.items()},
            "ms_cycle": 1e3 * totals.decode_seconds / passes,
            "speedup": _number(self.speedup.value),
            "interval": _interval(self.speedup),
            "speedup_end_to_end": _number(self.end_to_end.value),
            "interval_end_to_end": _interval(self.end_to_end),
            "efficiency": _number(_ratio(self.speedup.value, totals.tau)),
            "mismatches": self.mismatches,
            "ties": self.ties,
            "margins": list(self.margins),
            "runs": totals.runs,
            "tokens": totals.tokens,
        }


def pool(
    runs: Mapping[str, Sequence[TimedRun]],
    dialogues: Sequence[int],
    margins: Margins | None = None,
    base: str = TARGET_ONLY,
) -> dict[str, LaneResult]:
    """Pool every lane's runs and compare them with one lane of the target alone.

    Args:
        runs: by lane, the reference ``target-only`` among them; of all lanes the same prompts, round after round.
        dialogues: for each prompt the number of its dialogue.
        margins: the target's, where a lane's token differs; a difference without one is no near-tie.
        base: lane that speed-ups are over.
    """
    base_steps, base_wall = (_parts(runs[base], dialogues, part) for part in (_decoding, _whole))
    results = {}
    for name, own in runs.items():
        differing = [(margins or {}).get(position) for position in differences(runs[TARGET_ONLY], own, len(dialogues))]
        ties = sum(margin is not None and margin <= NEAR_TIE_MARGIN for margin in differing)
        steps = _parts(own, dialogues, _decoding)
        results[name] = LaneResult(
            totals=totals_of(own),
            speedup=pooled_ratio(base_steps, steps),
            end_to_end=pooled_ratio(base_wall, _parts(own, dialogues, _whole)),
            per_token=pooled_ratio([(1.0, 1.0)] * len(steps), [(seconds, tokens) for tokens, seconds in steps]),
            mismatches=len(differing) - ties,
            ties=ties,
            margins=tuple(differing),
        )
    return results


def results_of(measured: Measured, category: str | None = None) -> dict[str, LaneResult]:
    """Return the results of a benchmark, or of one of its categories."""
    chosen = [n for n, asked in enumerate(measured.prompts) if category in (None, asked.category)]
    total = len(measured.prompts)
    numbers = [round_ * total + n for round_ in range(measured.rounds) for n in chosen]
    runs = {name: [own[number] for number in numbers] for name, own in measured.runs.items()}
    number_of = {prompt: number for number, prompt in enumerate(chosen)}
    margins = {(number_of[p], at): margin for p, at, margin in measured.margins if p in number_of}
    return pool(runs, [measured.prompts[n].dialogue for n in chosen], margins, fastest_alone(measured))


def categories_of(measured: Measured) -> tuple[str, ...]:
    """Return the categories of the prompts in order of appearance."""
    return tuple(dict.fromkeys(asked.category for asked in measured.prompts))


def category_results(measured: Measured) -> dict[str, dict[str, LaneResult]]:
    """Return the results of every category."""
    return {category: results_of(measured, category) for category in categories_of(measured)}


def report_of(
    measured: Measured,
    results: Mapping[str, LaneResult],
    categories: Mapping[str, Mapping[str, LaneResult]],
    tokens_alone: bool = False,
) -> dict[str, Any]:
    """Return the report.

    Args:
        tokens_alone: leave out times.
    """

    def rows(lanes: Mapping[str, LaneResult]) -> dict[str, Any]:
        found = {name: lane.as_json() for name, lane in lanes.items()}
        if tokens_alone:
            return {name: {key: row[key] for key in TOKEN_FIELDS} for name, row in found.items()}
        return found

    report: dict[str, Any] = {
        "lanes": rows(results),
        "categories": {name: rows(own) for name, own in categories.items()},
        "data": measured.data,
        "prompts": len(measured.prompts),
        "rounds": measured.rounds,
        "seed": measured.seed,
        "setting": asdict(measured.setting),
        "config": asdict(measured.config),
        "machine": measured.machine,
    }
    if not tokens_alone:
        report |= {"reference": fastest_alone(measured), "warm_up": asdict(measured.warm_up)}
    return report


def fastest_alone(measured: Measured) -> str:
    """Return the name of the fastest lane of the target alone, prompts apart."""
    totals = {name: totals_of(measured.runs[name]) for name in measured.alone if name in measured.runs}
    return min(totals, key=lambda name: totals[name].seconds_per_token)


def differences(
    reference: Sequence[TimedRun], runs: Sequence[TimedRun], prompts: int
) -> Iterator[tuple[int, int]]:
    """Yield prompt and position of the first difference of every run from the reference's first on its prompt."""
    for number, run in enumerate(runs):
        ours, theirs = reference[number % prompts].token_ids, run.token_ids
        if ours != theirs:
            shared = zip(ours, theirs, strict=False)
            position = next((position for position, (one, other) in enumerate(shared) if one != other), None)
            yield number % prompts, min(len(ours), len(theirs)) if position is None else position


def _decoding(run: TimedRun) -> Part:
    return run.step_tokens, run.decode_seconds


def _whole(run: TimedRun) -> Part:
    return len(run.token_ids), run.wall_seconds


def _parts(runs: Sequence[TimedRun], dialogues: Sequence[int], part: Callable[[TimedRun], Part]) -> list[Part]:
    """Add up both numbers of the runs for each dialogue."""
    sums: dict[int, list[float]] = {dialogue: [0.0, 0.0] for dialogue in dialogues}
    for number, run in enumerate(runs):
        first, second = part(run)
        own = sums[dialogues[number % len(dialogues)]]
        own[0] += first
        own[1] += second
    return [(first, second) for first, second in sums.values()]


def _interval(ratio: Ratio, unit: float = 1.0) -> list[float] | None:
    """Return the ends of an interval; ``None`` where one dialogue alone gives none."""
    return [unit * ratio.low, unit * ratio.high] if math.isfinite(ratio.low) and math.isfinite(ratio.high) else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
