"""Measuring lanes: warm-up until rounds agree, then every prompt through every lane, in an order that is drawn."""

from __future__ import annotations

import math
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from tqdm.auto import tqdm

from specllava.bench.dialogues import BenchDialogue, prompts_of
from specllava.config import CHAIN_OPTIONS, RULES, DecodingConfig
from specllava.metrics import compare_ids
from specllava.models.language_model import now
from specllava.models.presets import Tree
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane, stream
from specllava.trace import TARGET_ONLY, Prefill, RunInfo, StepTrace

REFERENCE: Final = TARGET_ONLY  # whose tokens all other lanes' are compared with
LARGEST: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(  # of rules that without a floor grow all levels
    {"topk": {"depth": 10, "nodes": 24, "width": 2}, "sequoia": {"depth": 10, "nodes": 8, "width": 4}}
)
WARM_UP_PROMPTS: Final = 2
MOST_WARM_UPS: Final = 5


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step: a pass of the target, and the draft's passes before it.

    Args:
        emitted: tokens, at least one; accepted guesses among them are ``accepted``.
        target_width: tokens of the target's pass.
        draft_widths: tokens of each of the draft's passes.
        draft, verify, keep: seconds; another library's step is timed as a whole, which is ``verify``.
    """

    emitted: int
    accepted: int
    target_width: int
    draft_widths: tuple[int, ...] = ()
    draft: float = 0.0
    verify: float = 0.0
    keep: float = 0.0

    @property
    def seconds(self) -> float:
        return self.draft + self.verify + self.keep


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run.

    Args:
        token_ids: of the answer up to its end.
        first_tokens: those of the prefill; assisted generation of ``transformers`` verifies
            its first guesses there.
        vision_seconds: of the vision towers.
        read_seconds: of reading the prompt, with both models.
        steps: steps after the first tokens.
        wall_seconds: of the whole run, all bookkeeping in it.
    """

    token_ids: tuple[int, ...]
    first_tokens: int
    vision_seconds: float
    read_seconds: float
    steps: tuple[TimedStep, ...]
    wall_seconds: float

    @property
    def step_tokens(self) -> int:
        """Tokens of the steps."""
        return len(self.token_ids) - self.first_tokens

    @property
    def decode_seconds(self) -> float:
        """Seconds of the steps."""
        return math.fsum(step.seconds for step in self.steps)

    @classmethod
    def of_events(
        cls,
        prefill: Prefill,
        steps: Sequence[StepTrace],
        draft_widths: Sequence[Sequence[int]],
        wall_seconds: float,
    ) -> TimedRun:
        """Make it of the events of this project's own loop.

        Args:
            draft_widths: for each step the tokens of each of the draft's passes.
        """
        timed = tuple(
            TimedStep(
                emitted=len(step.emitted),
                accepted=len(step.emitted_nodes),
                target_width=len(step.tree),
                draft_widths=tuple(widths),
                draft=step.seconds.draft,
                verify=step.seconds.verify,
                keep=step.seconds.keep,
            )
            for step, widths in zip(steps, draft_widths, strict=True)
        )
        return cls(
            token_ids=(prefill.first_token, *(token for step in steps for token in step.emitted)),
            first_tokens=1,
            vision_seconds=prefill.vision_seconds,
            read_seconds=prefill.target_seconds + prefill.draft_seconds,
            steps=timed,
            wall_seconds=wall_seconds,
        )


Runner = Callable[[Prompt], TimedRun]


def bench_lanes(config: DecodingConfig, tree: Tree | None = None) -> dict[str, DecodingConfig]:
    """Return this project's lanes: target-only, every rule that is compared with the options that suit it best, and
    prompt lookup.

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
    """Return a runner for each lane of a benchmark, the reference first.

    Lanes that guess with a draft are left out where the pair has none, unless they are named.

    Args:
        only: names of lanes to run in addition to the reference; none means all.
        tree: as in :func:`bench_lanes`.

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
    return {name: partial(_run_config, pair, name, own[name]) for name in chosen}


def _run_config(pair: Pair, name: str, config: DecodingConfig, prompt: Prompt) -> TimedRun:
    return run_timed(pair, Lane(name, config, prompt))


def run_timed(pair: Pair, lane: Lane) -> TimedRun:
    """Decode a lane and time the whole run.

    A prompt is encoded once for all lanes. The towers' passes are added to the time of each lane that reads their
    features, as in its prefill. No time counts in which passes are captured.
    """
    started = now(pair.device) - pair.engines.capture_seconds
    request = pair.request(lane, record=False)
    steps, widths = list[StepTrace](), list[tuple[int, ...]]()
    with closing(stream(request)) as events:
        prefill = next(events)
        for step in events:
            assert isinstance(step, StepTrace)
            steps.append(step)
            widths.append(request.drafter.pass_tokens)
    seconds = now(pair.device) - pair.engines.capture_seconds - started + lane.prompt.vision_seconds
    assert isinstance(prefill, Prefill)
    if lane.config.drafter == "model" and lane.prompt.draft_prompt is not None:
        seconds += lane.prompt.draft_prompt.vision_seconds
    return TimedRun.of_events(prefill, steps, widths, seconds)


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt of the benchmark.

    Args:
        dialogue: number of the dialogue that it is a turn of; intervals draw dialogues.
        category: kind of the question.
    """

    dialogue: int
    category: str


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Rounds of all lanes before the measured ones, over the first prompts.

    Args:
        rounds: that were run.
        change: share by which the lane that changed most took longer or shorter in the last round than before it;
            ``None`` with fewer than two rounds.
        agreed: whether that was at most ``within``.
    """

    rounds: int
    change: float | None
    within: float
    agreed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How a benchmark is run.

    Args:
        data: where the dialogues are from, for the report.
        rounds: over all prompts.
        seed: of the order of lanes.
        within: share within which two warm-up rounds must agree in every lane; ``None``: no warm-up.
        command: that was given, for the report.
        alone: lanes without drafts; speed-ups are over the fastest of them.
    """

    data: str
    rounds: int = 3
    seed: int = 0
    within: float | None = 0.05
    command: str = ""
    alone: tuple[str, ...] = (REFERENCE,)


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole benchmark.

    Args:
        setting: models, device, precision, versions.
        config: options that all lanes share.
        machine: what the machine is.
        rounds: that every lane has finished.
        prompts: in order.
        runs: by lane, those of the first round over all prompts, then those of the next round.
        margins: the target's margin by prompt and position, where a lane's token differs.
    """

    plan: Plan
    setting: RunInfo
    config: DecodingConfig
    machine: Mapping[str, Any]
    rounds: int
    warm_up: WarmUp
    prompts: tuple[BenchPrompt, ...]
    runs: Mapping[str, tuple[TimedRun, ...]]
    margins: Mapping[tuple[int, int], float]


def measure(
    pair: Pair, dialogues: Sequence[BenchDialogue], runners: Mapping[str, Runner], config: DecodingConfig, plan: Plan
) -> Measured:
    """Run every lane on the prompts of all dialogues; Ctrl-C ends it with what every lane has finished.

    Raises:
        KeyboardInterrupt: Ctrl-C before a prompt was measured.
        ValueError: a dialogue that cannot be asked.
    """
    machine, order = machine_of(pair.device, plan.command), random.Random(plan.seed)
    asked, prompts = list[BenchPrompt](), list[Prompt]()
    for number, dialogue in enumerate(tqdm(dialogues, "prompts", disable=None)):
        for prompt in prompts_of(pair, dialogue, config):
            prompts.append(prompt)
            asked.append(BenchPrompt(number, dialogue.category))
    warmed = _warm_up(runners, prompts[:WARM_UP_PROMPTS], order, plan.within)
    runs: dict[str, list[TimedRun]] = {name: [] for name in runners}
    try:
        for prompt in tqdm(prompts * plan.rounds, "runs of every lane", disable=None):
            _run_lanes(runners, prompt, order, runs)
    except KeyboardInterrupt:
        if not min(map(len, runs.values())):
            raise
    done = min(map(len, runs.values()))
    rounds, count = max(1, done // len(prompts)), min(done, len(prompts))
    whole = {name: tuple(own[: rounds * count]) for name, own in runs.items()}
    margins = margins_of(whole, prompts[:count], pair, config)
    return Measured(plan, pair.info, config, machine, rounds, warmed, tuple(asked[:count]), whole, margins)


def _run_lanes(
    runners: Mapping[str, Runner], prompt: Prompt, order: random.Random, runs: Mapping[str, list[TimedRun]]
) -> None:
    """Run all lanes on one prompt, in an order that is drawn."""
    names = list(runners)
    order.shuffle(names)
    for name in names:
        runs[name].append(runners[name](prompt))


def _warm_up(
    runners: Mapping[str, Runner], prompts: Sequence[Prompt], order: random.Random, within: float | None
) -> WarmUp:
    """Run all lanes on the first prompts until two rounds agree, or often enough."""
    warmed, before = WarmUp(0, None, within or 0.0, False), dict[str, float]()
    for number in range(1, 1 + (0 if within is None else MOST_WARM_UPS)):
        runs: dict[str, list[TimedRun]] = {name: [] for name in runners}
        for prompt in prompts:
            _run_lanes(runners, prompt, order, runs)
        taken = {name: math.fsum(run.wall_seconds for run in own) for name, own in runs.items()}
        change = max((abs(taken[name] / before[name] - 1) for name in before), default=None)
        agreed = change is not None and within is not None and change <= within
        warmed, before = WarmUp(number, change, within or 0.0, agreed), taken
        if agreed:
            break
    return warmed


def differences(reference: Sequence[TimedRun], runs: Sequence[TimedRun], prompts: int) -> Iterator[tuple[int, int]]:
    """Yield prompt and position of the first difference of every run from the reference's first on its prompt."""
    for number, run in enumerate(runs):
        ours, theirs = reference[number % prompts].token_ids, run.token_ids
        if ours != theirs:
            shared = zip(ours, theirs, strict=False)
            position = next((position for position, (one, other) in enumerate(shared) if one != other), None)
            yield number % prompts, min(len(ours), len(theirs)) if position is None else position


def margins_of(
    runs: Mapping[str, Sequence[TimedRun]], prompts: Sequence[Prompt], pair: Pair, config: DecodingConfig
) -> dict[tuple[int, int], float]:
    """Return the target's margin at every position where a lane's token differs from the reference.

    The target alone is run once more there, recorded.
    """
    positions = {position for own in runs.values() for position in differences(runs[REFERENCE], own, len(prompts))}
    rows = {}
    for number in sorted({prompt for prompt, _ in positions}):
        lane = Lane(REFERENCE, replace(config, drafter="none"), prompts[number])
        trace = pair.run(lane)
        for prompt, position in positions:
            if prompt == number and position < len(trace.token_ids):
                other = [*trace.token_ids[:position], -1]
                margin = compare_ids(trace, other).margin
                if margin is not None:
                    rows[prompt, position] = margin
    return rows


def machine_of(device: torch.device, command: str) -> dict[str, Any]:
    """Return facts of the machine for a report."""
    rows: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "commit": _commit(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        rows |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return rows


def _commit() -> str | None:
    """Return the commit that is checked out, with ``+`` where files were changed; ``None`` outside of a checkout."""
    here = Path(__file__).parent
    head = _command_output("git", "-C", str(here), "rev-parse", "--short=12", "HEAD")
    changed = _command_output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no")
    return head and head + ("+" if changed else "")


def _cpu_name() -> str:
    """Return the processor's name from Linux, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _command_output(*command: str) -> str | None:
    """Return the output of a program; ``None`` if there is none or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
