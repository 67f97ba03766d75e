"""Measuring: warm-up until rounds agree, then every prompt through every lane, in an order drawn anew each time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from tqdm.auto import tqdm

from specllava.bench.bare_passes import BareSteps
from specllava.bench.dialogue import BenchDialogue, prompts_of
from specllava.bench.energy import energy_meter
from specllava.bench.lanes import REFERENCE, Runner
from specllava.bench.machine import conditions, machine_of
from specllava.bench.measured import BenchPrompt, Measured, WarmUp
from specllava.bench.peak_memory import PeakMemory
from specllava.bench.raw_passes import raw_passes
from specllava.bench.results import differences
from specllava.bench.timed_run import TimedRun
from specllava.bench.transformers_lanes import TRANSFORMERS_LANES, LaneFailedError
from specllava.bench.vision_time import with_vision_time
from specllava.core.config import DecodingConfig
from specllava.core.metrics import compare_ids
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt

WARM_UP_PROMPTS: Final = 2
MOST_WARM_UPS: Final = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """How a benchmark is run.

    Args:
        data: where the dialogues are from, for the report.
        rounds: over all prompts.
        seed: of the order of lanes.
        within: share within which two warm-up rounds must agree in every lane; ``None``: no warm-up.
        floor: time passes at the end, and repeat those of every run of the first round bare.
        command: that was given, for the report.
    """

    data: str
    rounds: int = 3
    seed: int = 0
    within: float | None = 0.05
    floor: bool = True
    command: str = ""


class BenchStopped(KeyboardInterrupt):
    """Ctrl-C, with what was measured of the prompts that every lane had finished by then."""

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self.measured = measured


def measure(
    pair: Pair, dialogues: Sequence[BenchDialogue], runners: Mapping[str, Runner], config: DecodingConfig, plan: Plan
) -> Measured:
    """Run every lane on the prompts of all dialogues.

    A lane of ``transformers`` that fails is left out from there on, and the report says why.

    Raises:
        BenchStopped: Ctrl-C, once something was measured.
        ValueError: a dialogue that cannot be asked.
    """
    return _Bench(pair, dialogues, runners, config, plan).measure()


class _Bench:
    """State of one benchmark."""

    def __init__(
        self, pair: Pair, dialogues: Sequence[BenchDialogue], runners: Mapping[str, Runner], config: DecodingConfig,
        plan: Plan,
    ) -> None:  # fmt: skip
        self._pair, self._config, self._plan = pair, config, plan
        self._runners, self._failures = dict(runners), dict[str, str]()
        gpus = gpus_of(pair)
        self._energy, self._memory = energy_meter(gpus), PeakMemory(gpus)
        meters = {"energy": self._energy.as_json(), "peak_memory": self._memory.kind}
        self._machine = machine_of(pair.device, plan.command) | meters
        self._asked: list[BenchPrompt] = []
        self._prompts: list[Prompt] = []
        for number, dialogue in enumerate(tqdm(dialogues, "prompts", disable=None)):
            for prompt in prompts_of(pair, dialogue, config):
                self._prompts.append(prompt)
                self._asked.append(BenchPrompt(number, dialogue.category, prompt.length))
        self._runs: dict[str, list[TimedRun]] = {name: [] for name in runners}
        self._order = random.Random(plan.seed)
        self._warm_up = WarmUp(0, None, plan.within or 0.0, False)
        lengths = [prompt.length for prompt in self._prompts]
        self._contexts = min(lengths), max(lengths) + config.max_new_tokens
        self._bare_steps = BareSteps(pair)

    def measure(self) -> Measured:
        total = len(self._prompts)
        self._warm()
        bar = tqdm(total=self._plan.rounds * total, desc="runs of every lane", disable=None)
        with bar:
            for number in range(self._plan.rounds):
                try:
                    for prompt in self._prompts:
                        self._run_lanes(prompt, self._runs, bare=self._plan.floor and number == 0)
                        bar.update()
                except KeyboardInterrupt:
                    done = min(map(len, self._runs.values()))
                    if done == 0:
                        raise
                    raise BenchStopped(self._result(done)) from None
        return self._result(self._plan.rounds * total)

    def _warm(self) -> None:
        """Run all lanes on the first prompts until two rounds agree, or often enough."""
        if self._plan.within is None:
            return
        before: dict[str, float] = {}
        for number in range(1, MOST_WARM_UPS + 1):
            runs: dict[str, list[TimedRun]] = {name: [] for name in self._runners}
            for prompt in self._prompts[:WARM_UP_PROMPTS]:
                self._run_lanes(prompt, runs)
            taken = {name: math.fsum(run.wall_seconds for run in runs[name]) for name in self._runners}
            change = max((abs(taken[name] / before[name] - 1) for name in taken if name in before), default=None)
            agreed = change is not None and change <= self._plan.within
            self._warm_up = WarmUp(number, change, self._plan.within, agreed)
            if agreed:
                return
            before = taken

    def _run_lanes(self, prompt: Prompt, runs: dict[str, list[TimedRun]], bare: bool = False) -> None:
        """Run all lanes on one prompt, in an order that is drawn; ``bare``: repeat each run's passes after it."""
        names = list(self._runners)
        self._order.shuffle(names)
        before = self._energy.read()
        timed = with_vision_time(self._pair, prompt)
        vision = self._energy.since(before)
        for name in names:
            self._memory.reset()
            before = self._energy.read()
            try:
                run = self._runners[name](timed)
            except LaneFailedError as error:
                self._failures[name] = str(error)
                del self._runners[name]
                self._runs.pop(name, None)
            else:
                joules, peak = self._energy.since(before), self._memory.read()
                if joules is not None and vision is not None and name not in TRANSFORMERS_LANES:
                    joules += vision  # generate encodes the picture itself
                run = replace(run, joules=joules, peak_bytes=peak)
                runs[name].append(replace(run, bare_seconds=self._bare_steps.seconds(run)) if bare else run)

    def _result(self, done: int) -> Measured:
        """Return the measurements of the first ``done`` runs of every lane; a round that was stopped does not count,
        the first one up to where it was."""
        total = len(self._prompts)
        rounds = max(1, done // total)
        prompts = self._prompts if done >= total else self._prompts[:done]
        runs = {name: tuple(own[: rounds * len(prompts)]) for name, own in self._runs.items()}
        margins = margins_of(runs, prompts, self._pair, self._config)
        return Measured(
            data=self._plan.data,
            setting=self._pair.info,
            config=self._config,
            machine={**self._machine, "after": conditions(self._pair.device)},
            seed=self._plan.seed,
            rounds=rounds,
            warm_up=self._warm_up,
            prompts=tuple(self._asked[: len(prompts)]),
            runs=runs,
            margins=tuple((prompt, position, margin) for (prompt, position), margin in margins.items()),
            failures=self._failures,
            raw_passes=raw_passes(self._pair, self._contexts) if self._plan.floor else (),
        )


def gpus_of(pair: Pair) -> list[torch.device]:
    """Return the GPUs that hold weights of a pair, in order."""
    models = [model for model in (pair.target, pair.draft) if model is not None]
    held = {weight.device for model in models for weight in model.parameters()}
    return sorted((device for device in held if device.type == "cuda"), key=str)


def margins_of(
    runs: Mapping[str, Sequence[TimedRun]], prompts: Sequence[Prompt], pair: Pair, config: DecodingConfig
) -> dict[tuple[int, int], float]:
    """Return the target's margin at every position where a lane's token differs from the reference.

    The target alone is run once more there, recorded.
    """
    positions = {position for own in runs.values() for position in differences(runs[REFERENCE], own, len(prompts))}
    found = {}
    for number in sorted({prompt for prompt, _ in positions}):
        lane = Lane(REFERENCE, replace(config, drafter="none"), prompts[number])
        trace = pair.run(lane)
        for prompt, position in positions:
            if prompt == number and position < len(trace.token_ids):
                other = [*trace.token_ids[:position], -1]
                margin = compare_ids(trace, other).margin
                if margin is not None:
                    found[prompt, position] = margin
    return found
