"""Report of a benchmark: totals, ratios of totals with their intervals, and tables for a terminal.

Ratios are total over total, never a mean of ratios; intervals are of the bootstrap over dialogues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.box import SIMPLE
from rich.table import Table

from specllava.bench.measure import Measured, TimedRun, differences
from specllava.metrics import NEAR_TIE_MARGIN, Part, Ratio, RunTotals, pool_totals, pooled_ratio
from specllava.trace import TARGET_ONLY

Margins = Mapping[tuple[int, int], float]  # by prompt and position
Row = dict[str, Any]
SPEED_HEADS: Final = ("lane", "τ", "ms/token", "speed-up", "95 %", "differ", "ties")
TIME_HEADS: Final = (
    "lane", "vision\nms", "prefill\nms", "wall\nms/token", "wall\nspeed-up", "effi-\nciency"
)  # fmt: skip


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
    margins = {(number_of[p], at): margin for (p, at), margin in measured.margins.items() if p in number_of}
    return pool(runs, [measured.prompts[n].dialogue for n in chosen], margins, fastest_alone(measured))


def categories_of(measured: Measured) -> tuple[str, ...]:
    """Return the categories of the prompts in order of appearance."""
    return tuple(dict.fromkeys(asked.category for asked in measured.prompts))


def category_results(measured: Measured) -> dict[str, dict[str, LaneResult]]:
    """Return the results of every category."""
    return {category: results_of(measured, category) for category in categories_of(measured)}


def report_of(
    measured: Measured, results: Mapping[str, LaneResult], categories: Mapping[str, Mapping[str, LaneResult]]
) -> dict[str, Any]:
    """Return the report of ``bench --json``."""
    return {
        "lanes": {name: lane.as_json() for name, lane in results.items()},
        "categories": {
            category: {name: lane.as_json() for name, lane in own.items()} for category, own in categories.items()
        },
        "data": measured.plan.data,
        "prompts": len(measured.prompts),
        "rounds": measured.rounds,
        "seed": measured.plan.seed,
        "setting": asdict(measured.setting),
        "config": asdict(measured.config),
        "machine": measured.machine,
        "reference": fastest_alone(measured),
        "warm_up": asdict(measured.warm_up),
    }


def fastest_alone(measured: Measured) -> str:
    """Return the name of the fastest lane of the target alone, prompts apart."""
    totals = {name: totals_of(measured.runs[name]) for name in measured.plan.alone if name in measured.runs}
    return min(totals, key=lambda name: totals[name].seconds_per_token)


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


def tables_of(
    title: str, results: Mapping[str, LaneResult], categories: Mapping[str, Mapping[str, LaneResult]]
) -> list[Table]:
    """Return the tables for a terminal: speed, times, and speed-ups by category if there are several."""
    rows = {name: lane.as_json() for name, lane in results.items()}
    tables = [
        _table(SPEED_HEADS, [_speed_row(name, row) for name, row in rows.items()], title),
        _table(TIME_HEADS, [_time_row(name, row) for name, row in rows.items()]),
    ]
    if len(categories) > 1:
        speedups = {name: [own[name].as_json()["speedup"] for own in categories.values()] for name in results}
        tables.append(_table(("speed-up", *categories), [(name, *map(_figure, own)) for name, own in speedups.items()]))
    return tables


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    table = Table(box=SIMPLE, padding=0, title=title)
    for head in heads:
        table.add_column(head, no_wrap=True)  # a heading that is cut off cannot be read
    for row in rows:
        table.add_row(*row)
    return table


def _speed_row(name: str, row: Row) -> tuple[str, ...]:
    figures = (_figure(row["tau"]), _figure(row["ms_per_token"]), _figure(row["speedup"]))
    return (name, *figures, _range(row["interval"]), str(row["mismatches"]), str(row["ties"]))


def _time_row(name: str, row: Row) -> tuple[str, ...]:
    times = (_figure(row["ms_vision"], 1), _figure(row["ms_prefill"], 1), _figure(row["ms_per_token_wall"]))
    return (name, *times, _figure(row["speedup_end_to_end"]), _figure(row["efficiency"]))


def notes_of(measured: Measured, fastest: str) -> list[str]:
    """Return notes to the tables, one line each."""
    warm, machine = measured.warm_up, measured.machine
    lines = [f"speed-ups are over {fastest}, the fastest lane of the target alone", f"order seed {measured.plan.seed}"]
    if warm.rounds:
        ended = "agreed" if warm.agreed else "did not agree, the machine is busy or its clock changes:"
        change = "" if warm.change is None else f" {100 * warm.change:.1f} % apart"
        lines.append(f"warm-up: {warm.rounds} rounds {ended}{change} (within {100 * warm.within:g} %)")
    lines.append(str(machine.get("gpu") or machine.get("cpu")))
    return lines


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _range(ends: Sequence[float] | None) -> str:
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"
