"""The benchmark: every lane on the same prompts, in one process, in an order that is drawn; see ``docs/results.md``.

Ratios are total over total, never a mean of ratios; intervals are of the bootstrap over dialogues.
"""

from __future__ import annotations

import math
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from rich.box import SIMPLE
from rich.table import Table
from tqdm.auto import tqdm

from specllava.config import CHAIN_OPTIONS, RULES, DecodingConfig
from specllava.distill.rows import BenchDialogue
from specllava.metrics import (
    NEAR_TIE_MARGIN,
    Part,
    Ratio,
    RunTotals,
    margin_at,
    pool_totals,
    pooled_ratio,
    prefill_totals,
    step_totals,
)
from specllava.models.language_model import now
from specllava.models.presets import Tree
from specllava.pair import Pair
from specllava.prompt import NoRoomError, Prompt
from specllava.spec_decode.loop import Lane, stream
from specllava.trace import TARGET_ONLY, Prefill, RunInfo, StepTrace

REFERENCE: Final = TARGET_ONLY  # whose tokens all other lanes' are compared with
LARGEST: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(  # of rules that without a floor grow all levels
    {"topk": {"depth": 10, "nodes": 24, "width": 2}, "sequoia": {"depth": 10, "nodes": 8, "width": 4}}
)
WARM_UP_PROMPTS: Final = 2
WARM_UPS: Final = 2  # runs of every lane on them before anything is measured


def prompts_of(pair: Pair, dialogue: BenchDialogue, config: DecodingConfig) -> Iterator[Prompt]:
    """Yield the prompt of every turn. Between two of them is the answer of the target alone, for every lane.

    Each prompt is whole: no lane reuses what it read for the turn before. A dialogue that outgrows the context ends.

    Raises:
        ValueError: its first question does not fit the context, or a picture or text that cannot be read; one line that
            names the dialogue.
    """
    chat: list[dict[str, Any]] = []
    for number, text in enumerate(dialogue.turns):
        chat.append({"role": "user", "content": text})
        try:
            prompt = pair.prompt(dialogue.images, chat, config.max_new_tokens)
        except ValueError as error:
            if number and isinstance(error, NoRoomError):
                return
            raise ValueError(f"{dialogue.name}: {error}") from error
        yield prompt
        if number + 1 < len(dialogue.turns):
            alone = Lane(TARGET_ONLY, replace(config, drafter="none"), prompt)
            chat.append({"role": "assistant", "content": pair.run(alone, record=False).text})


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run: the tokens of the answer up to its end, and its totals, the seconds on the wall among them."""

    token_ids: tuple[int, ...]
    totals: RunTotals


Runner = Callable[[Prompt], TimedRun]


def bench_lanes(config: DecodingConfig, tree: Tree | None = None) -> dict[str, DecodingConfig]:
    """Return this project's lanes: target-only, every rule with the options that suit it best, and prompt lookup.

    Args:
        tree: options with which others measured the draft; the lane of its rule runs it as it is.

    Raises:
        ValueError: guesses drawn by chance; the lanes' answers differ then and cannot be compared.
    """
    if not config.keeps_tokens:
        raise ValueError(f"children are {config.children}: the benchmark compares tokens, so they must be best")
    rules: dict[str, DecodingConfig] = {
        rule: replace(config, drafter="model", rule=rule, **_suited_options(rule, config)) for rule in RULES
    }
    if tree:
        rules[tree["rule"]] = replace(config, drafter="model", **tree)
    lookup = replace(config, drafter="prompt-lookup")
    return {REFERENCE: replace(config, drafter="none"), **rules, "prompt-lookup": lookup}


def _suited_options(rule: str, config: DecodingConfig) -> dict[str, Any]:
    """Return the options that suit a rule best (``docs/results.md``), never beyond the configured ones."""
    if rule == CHAIN_OPTIONS["rule"]:  # a chain stops sooner than a tree
        return {"min_log_prob": max(CHAIN_OPTIONS["min_log_prob"], config.min_log_prob)}
    return {name: min(most, getattr(config, name)) for name, most in LARGEST.get(rule, {}).items()}


def runners_of(
    pair: Pair, config: DecodingConfig, only: Sequence[str] = (), tree: Tree | None = None
) -> dict[str, Runner]:
    """Return a runner for each lane of :func:`bench_lanes`, or of ``only`` these and the reference.

    Lanes that guess with a draft are left out where the pair has none, unless they are named.

    Raises:
        ValueError: a name that no lane bears, or of a lane that cannot be had here; one line with the way out.
    """
    own = bench_lanes(config, tree)
    if unknown := [name for name in only if name not in own]:
        raise ValueError(f"there is no lane {unknown[0]}: choose among {', '.join(own)}")
    missing = [name for name, lane in own.items() if lane.drafter == "model" and pair.draft is None]
    if refused := [name for name in only if name in missing]:
        raise ValueError(f"the lane {refused[0]} cannot be run: the pair {pair.name} has no draft: {pair.draft_advice}")
    chosen = [name for name in own if name not in missing and (not only or name in (REFERENCE, *only))]
    return {name: partial(_run_timed, pair, name, own[name]) for name in chosen}


def _run_timed(pair: Pair, name: str, config: DecodingConfig, prompt: Prompt) -> TimedRun:
    """Decode a lane and time the whole run.

    A prompt is encoded once for all lanes. The towers' passes are added to the time of each lane that reads their
    features, as in its prefill. No time counts in which passes are captured.
    """
    started = now(pair.device) - pair.engines.capture_seconds
    request = pair.request(Lane(name, config, prompt), record=False)
    steps, draft_passes = list[StepTrace](), 0
    with closing(stream(request)) as events:
        prefill = next(events)
        for step in events:
            assert isinstance(step, StepTrace)
            steps.append(step)
            draft_passes += len(request.drafter.pass_tokens)
    seconds = now(pair.device) - pair.engines.capture_seconds - started + prompt.vision_seconds
    assert isinstance(prefill, Prefill)
    if config.drafter == "model" and prompt.draft_prompt is not None:
        seconds += prompt.draft_prompt.vision_seconds
    totals = pool_totals([prefill_totals(prefill), *map(step_totals, steps)])
    return TimedRun(tuple(request.emitted), replace(totals, wall_seconds=seconds, draft_passes=draft_passes))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a benchmark is run.

    Args:
        data: where the dialogues are from, for the report.
        rounds: over all prompts.
        seed: of the order of lanes.
        warm_ups: runs of every lane on the first prompts before.
        command: that was given, for the report.
        alone: lanes without drafts; speed-ups are over the fastest of them.
    """

    data: str
    rounds: int = 3
    seed: int = 0
    warm_ups: int = WARM_UPS
    command: str = ""
    alone: tuple[str, ...] = (REFERENCE,)


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole benchmark.

    Args:
        config: options that all lanes share.
        rounds: that every lane has finished.
        dialogues: of each prompt in order, the number of its dialogue, which intervals draw, and its category.
        runs: by lane, those of the first round over all prompts, then those of the next round.
        margins: the target's margin by prompt and position, where a lane's token differs.
    """

    plan: Plan
    setting: RunInfo
    config: DecodingConfig
    machine: Mapping[str, Any]
    rounds: int
    dialogues: tuple[tuple[int, str], ...]
    runs: Mapping[str, tuple[TimedRun, ...]]
    margins: Mapping[tuple[int, int], float]

    @property
    def reference(self) -> str:
        """Name of the fastest lane of the target alone, prefills apart."""
        lanes = {name: self.runs[name] for name in self.plan.alone if name in self.runs}
        return min(lanes, key=lambda name: pool_totals(run.totals for run in lanes[name]).seconds_per_token)


def measure(
    pair: Pair, dialogues: Sequence[BenchDialogue], runners: Mapping[str, Runner], config: DecodingConfig, plan: Plan
) -> Measured:
    """Run every lane on the prompts of all dialogues; Ctrl-C ends it with what every lane has finished.

    Raises:
        KeyboardInterrupt: Ctrl-C before a prompt was measured.
        ValueError: a dialogue that cannot be asked.
    """
    machine, order = machine_of(pair.device, plan.command), random.Random(plan.seed)
    asked, prompts = list[tuple[int, str]](), list[Prompt]()
    for number, dialogue in enumerate(tqdm(dialogues, "prompts", disable=None)):
        for prompt in prompts_of(pair, dialogue, config):
            prompts.append(prompt)
            asked.append((number, dialogue.category))
    _run_in_order(runners, prompts[:WARM_UP_PROMPTS] * plan.warm_ups, order, {name: [] for name in runners})
    runs: dict[str, list[TimedRun]] = {name: [] for name in runners}
    try:
        _run_in_order(runners, tqdm(prompts * plan.rounds, "runs of every lane", disable=None), order, runs)
    except KeyboardInterrupt:
        if not min(map(len, runs.values())):
            raise
    done = min(map(len, runs.values()))
    rounds, count = max(1, done // len(prompts)), min(done, len(prompts))
    whole = {name: tuple(own[: rounds * count]) for name, own in runs.items()}
    margins = _margins(whole, prompts[:count], pair, config)
    return Measured(plan, pair.info, config, machine, rounds, tuple(asked[:count]), whole, margins)


def _run_in_order(
    runners: Mapping[str, Runner], prompts: Sequence[Prompt], order: random.Random, runs: Mapping[str, list[TimedRun]]
) -> None:
    """Run all lanes on each prompt, in an order that is drawn."""
    names = list(runners)
    for prompt in prompts:
        order.shuffle(names)
        for name in names:
            runs[name].append(runners[name](prompt))


def differences(reference: Sequence[TimedRun], runs: Sequence[TimedRun], prompts: int) -> Iterator[tuple[int, int]]:
    """Yield prompt and position of the first difference of every run from the reference's first on its prompt."""
    for number, run in enumerate(runs):
        ours, theirs = reference[number % prompts].token_ids, run.token_ids
        if ours != theirs:
            shared = min(len(ours), len(theirs))
            yield number % prompts, next((at for at in range(shared) if ours[at] != theirs[at]), shared)


def _margins(
    runs: Mapping[str, Sequence[TimedRun]], prompts: Sequence[Prompt], pair: Pair, config: DecodingConfig
) -> dict[tuple[int, int], float]:
    """Return the target's margin where a lane's token differs from the reference; the target alone is run once more."""
    margins = {}
    positions = {position for own in runs.values() for position in differences(runs[REFERENCE], own, len(prompts))}
    for number in sorted({prompt for prompt, _ in positions}):
        trace = pair.run(Lane(REFERENCE, replace(config, drafter="none"), prompts[number]))
        for prompt, position in positions:
            if prompt == number and position < len(trace.token_ids):
                margins[prompt, position] = margin_at(trace, position)
    return margins


def machine_of(device: torch.device, command: str) -> dict[str, Any]:
    """Return facts of the machine for a report; the commit has a ``+`` where files were changed."""
    here = ("git", "-C", str(Path(__file__).parent))
    commit = _output_of(*here, "rev-parse", "--short=12", "HEAD")
    changed = "+" if _output_of(*here, "status", "--porcelain", "--untracked-files=no") else ""
    rows: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "commit": commit and commit + changed,
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        rows |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return rows


def _cpu_name() -> str:
    """Return the processor's name from Linux, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _output_of(*command: str) -> str | None:
    """Return the output of a program; ``None`` if there is none or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


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
        """Return the lane's row of ``bench --json``; times in milliseconds, those of prefills a run."""
        totals, tokens = self.totals, max(1, self.totals.tokens)
        return {
            "tau": _number(totals.tau),
            "ms_per_token": _number(1e3 * self.per_token.value),
            "ms_per_token_interval": _interval(self.per_token, 1e3),
            "ms_vision": 1e3 * totals.vision_seconds / max(1, totals.runs),
            "ms_prefill": 1e3 * totals.prefill_seconds / max(1, totals.runs),
            "ms_per_token_end_to_end": 1e3 * (totals.prefill_seconds + totals.decode_seconds) / tokens,
            "ms_per_token_wall": 1e3 * totals.wall_seconds / tokens,
            "speedup": _number(self.speedup.value),
            "interval": _interval(self.speedup),
            "speedup_end_to_end": _number(self.end_to_end.value),
            "interval_end_to_end": _interval(self.end_to_end),
            "efficiency": _number(self.speedup.value / totals.tau) if totals.tau else None,
            "mismatches": self.mismatches,
            "ties": self.ties,
            "margins": list(self.margins),
            "runs": totals.runs,
            "tokens": totals.tokens,
        }


def _interval(ratio: Ratio, unit: float = 1.0) -> list[float] | None:
    """Return the ends of an interval; ``None`` where one dialogue alone gives none."""
    return [unit * ratio.low, unit * ratio.high] if math.isfinite(ratio.low) and math.isfinite(ratio.high) else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def pool(
    runs: Mapping[str, Sequence[TimedRun]],
    dialogues: Sequence[int],
    margins: Mapping[tuple[int, int], float] | None = None,
    base: str = TARGET_ONLY,
) -> dict[str, LaneResult]:
    """Pool every lane's runs, of the same prompts round after round, and compare them with those of ``base``.

    Args:
        dialogues: for each prompt the number of its dialogue.
        margins: the target's, where a lane's token differs; a difference without one is no near-tie.
    """
    base_steps, base_wall = _parts(runs[base], dialogues)
    results = {}
    for name, own in runs.items():
        differing = [(margins or {}).get(position) for position in differences(runs[TARGET_ONLY], own, len(dialogues))]
        ties = sum(margin is not None and margin <= NEAR_TIE_MARGIN for margin in differing)
        steps, wall = _parts(own, dialogues)
        results[name] = LaneResult(
            totals=pool_totals(run.totals for run in own),
            speedup=pooled_ratio(base_steps, steps),
            end_to_end=pooled_ratio(base_wall, wall),
            per_token=pooled_ratio([(1.0, 1.0)] * len(steps), [(seconds, tokens) for tokens, seconds in steps]),
            mismatches=len(differing) - ties,
            ties=ties,
            margins=tuple(differing),
        )
    return results


def _parts(runs: Sequence[TimedRun], dialogues: Sequence[int]) -> tuple[list[Part], list[Part]]:
    """Return tokens and seconds of each dialogue's runs: of their steps, and of the whole."""
    owned: dict[int, list[RunTotals]] = {dialogue: [] for dialogue in dialogues}
    for number, run in enumerate(runs):
        owned[dialogues[number % len(dialogues)]].append(run.totals)
    totals = [pool_totals(own) for own in owned.values()]
    steps: list[Part] = [(one.step_tokens, one.decode_seconds) for one in totals]
    return steps, [(one.tokens, one.wall_seconds) for one in totals]


def results_of(measured: Measured, category: str | None = None) -> dict[str, LaneResult]:
    """Return the results of a benchmark, or of one of its categories."""
    asked = measured.dialogues
    chosen = [number for number, (_, own) in enumerate(asked) if category in (None, own)]
    numbers = [first + number for first in range(0, measured.rounds * len(asked), len(asked)) for number in chosen]
    runs = {name: [own[number] for number in numbers] for name, own in measured.runs.items()}
    margins = {(chosen.index(p), at): margin for (p, at), margin in measured.margins.items() if p in chosen}
    return pool(runs, [asked[number][0] for number in chosen], margins, measured.reference)


Categories = Mapping[str, Mapping[str, LaneResult]]


def category_results(measured: Measured) -> Categories:
    """Return the results of every category, in order of appearance."""
    return {category: results_of(measured, category) for category in dict(one[::-1] for one in measured.dialogues)}


def report_of(measured: Measured, results: Mapping[str, LaneResult], categories: Categories) -> dict[str, Any]:
    """Return the report of ``bench --json``."""
    return {
        "lanes": {name: lane.as_json() for name, lane in results.items()},
        "categories": {
            category: {name: lane.as_json() for name, lane in own.items()} for category, own in categories.items()
        },
        "data": measured.plan.data,
        "prompts": len(measured.dialogues),
        "rounds": measured.rounds,
        "seed": measured.plan.seed,
        "setting": asdict(measured.setting),
        "config": asdict(measured.config),
        "machine": measured.machine,
        "reference": measured.reference,
    }


def tables_of(title: str, results: Mapping[str, LaneResult], categories: Categories) -> list[Table]:
    """Return the tables for a terminal: speed, times, and speed-ups by category if there are several."""
    speeds, times, kinds = [], [], []
    for name, row in ((name, lane.as_json()) for name, lane in results.items()):
        ends = row["interval"]
        interval = "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"
        figures = (_figure(row[key]) for key in ("tau", "ms_per_token", "speedup"))
        speeds.append((name, *figures, interval, str(row["mismatches"]), str(row["ties"])))
        figures = (_figure(row[key], 1) for key in ("ms_vision", "ms_prefill"))
        walls = (_figure(row[key]) for key in ("ms_per_token_wall", "speedup_end_to_end", "efficiency"))
        times.append((name, *figures, *walls))
        kinds.append((name, *(_figure(own[name].as_json()["speedup"]) for own in categories.values())))
    heads = "lane", "vision\nms", "prefill\nms", "wall\nms/token", "wall\nspeed-up", "effi-\nciency"
    tables = [
        _table(("lane", "τ", "ms/token", "speed-up", "95 %", "differ", "ties"), speeds, title), _table(heads, times)
    ]  # fmt: skip
    return tables if len(categories) < 2 else [*tables, _table(("speed-up", *categories), kinds)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    table = Table(box=SIMPLE, padding=0, title=title)
    for head in heads:
        table.add_column(head, no_wrap=True)  # a heading that is cut off cannot be read
    for row in rows:
        table.add_row(*row)
    return table


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
