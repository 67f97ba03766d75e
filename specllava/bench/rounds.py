"""Measuring: warm-up until rounds agree, then every prompt through every lane, in an order drawn anew each time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tqdm.auto import tqdm

from specllava.bench.dialogue import BenchDialogue, prompts_of
from specllava.bench.lanes import REFERENCE, Runner
from specllava.bench.machine import machine_of
from specllava.bench.measured import BenchPrompt, Measured, WarmUp
from specllava.bench.results import differences
from specllava.bench.timed_run import TimedRun
from specllava.config import DecodingConfig
from specllava.metrics import compare_ids
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane

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
        command: that was given, for the report.
        alone: as in :class:`~specllava.bench.measured.Measured`.
    """

    data: str
    rounds: int = 3
    seed: int = 0
    within: float | None = 0.05
    command: str = ""
    alone: tuple[str, ...] = (REFERENCE,)


class BenchStopped(KeyboardInterrupt):
    """Ctrl-C, with what was measured of the prompts that every lane had finished by then."""

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self.measured = measured


def measure(
    pair: Pair, dialogues: Sequence[BenchDialogue], runners: Mapping[str, Runner], config: DecodingConfig, plan: Plan
) -> Measured:
    """Run every lane on the prompts of all dialogues.

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
        self._runners = runners
        self._machine = machine_of(pair.device, plan.command)
        self._asked: list[BenchPrompt] = []
        self._prompts: list[Prompt] = []
        for number, dialogue in enumerate(tqdm(dialogues, "prompts", disable=None)):
            for prompt in prompts_of(pair, dialogue, config):
                self._prompts.append(prompt)
                self._asked.append(BenchPrompt(number, dialogue.category, prompt.length))
        self._runs: dict[str, list[TimedRun]] = {name: [] for name in runners}
        self._order = random.Random(plan.seed)
        self._warm_up = WarmUp(0, None, plan.within or 0.0, False)

    def measure(self) -> Measured:
        total = len(self._prompts)
        self._warm()
        bar = tqdm(total=self._plan.rounds * total, desc="runs of every lane", disable=None)
        with bar:
            for _ in range(self._plan.rounds):
                try:
                    for prompt in self._prompts:
                        self._run_lanes(prompt, self._runs)
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

    def _run_lanes(self, prompt: Prompt, runs: dict[str, list[TimedRun]]) -> None:
        """Run all lanes on one prompt, in an order that is drawn."""
        names = list(self._runners)
        self._order.shuffle(names)
        for name in names:
            runs[name].append(self._runners[name](prompt))

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
            machine=self._machine,
            seed=self._plan.seed,
            rounds=rounds,
            warm_up=self._warm_up,
            prompts=tuple(self._asked[: len(prompts)]),
            runs=runs,
            margins=tuple((prompt, position, margin) for (prompt, position), margin in margins.items()),
            alone=self._plan.alone,
        )


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
