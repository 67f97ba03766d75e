"""Sweep one option, or the drafts of one target and prompt lookup, everything else equal."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.question import Messages
from specllava.trace import TARGET_ONLY, DecodeTrace
from specllava.findings.sweep import SWEEP_VALUES, Sweep, Value
from specllava.models.images import Pictures
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Event, Lane, race

TICK = 0.5  # seconds between two new findings of a sweep that is running
LOOKUP = "prompt lookup"


def sweep_values(config: DecodingConfig, field: str) -> tuple[Value, ...]:
    """Return the values of an option that a sweep tries, the present one among them.

    Raises:
        ValueError: an option that cannot be swept, or that the rule does not use.
    """
    if field not in SWEEP_VALUES:
        raise ValueError(f"{field!r} is no knob: choose one of {', '.join(SWEEP_VALUES)}")
    if field != "depth" and field not in RULE_CHOICES[config.rule].options:
        users = ", ".join(name for name, choice in RULE_CHOICES.items() if field in choice.options)
        raise ValueError(f"the {config.rule} rule does not look at {field}: take {users}, or turn another knob")
    return tuple(sorted({*SWEEP_VALUES[field], getattr(config, field)}))  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A run of a sweep: a value, and who answers how."""

    value: Value
    pair: Pair
    prompt: Prompt
    config: DecodingConfig


def sweep(pair: Pair, prompt: Prompt, config: DecodingConfig, field: str, values: Sequence[Value]) -> Generator[Sweep]:
    """Decode the prompt at every value of an option and by the target alone, see :func:`sweep_runs`."""
    varied: list[dict[str, Any]] = [{field: value} for value in values]
    runs = [
        SweepRun(value, pair, prompt, replace(config, **change)) for value, change in zip(values, varied, strict=True)
    ]
    return sweep_runs(Sweep(field, tuple(values), getattr(config, field)), runs)


def sweep_runs(finding: Sweep, runs: Sequence[SweepRun]) -> Generator[Sweep]:
    """Decode every run and, by the first one's target alone, the same; how far all have come, after each decode step.

    A new finding comes every :data:`TICK` seconds; in between, the last one is yielded unchanged. The runs take turns
    step by step, so that a busy machine slows all alike; each has caches and a clock of its own.
    """
    first = runs[0]
    alone = Lane(TARGET_ONLY, replace(first.config, drafter="none"), first.prompt)
    lanes = [Lane(str(number), run.config, run.prompt) for number, run in enumerate(runs)]
    pairs = {lane.name: run.pair for lane, run in zip(lanes, runs, strict=True)} | {TARGET_ONLY: first.pair}
    items: dict[str, list[Event]] = {}
    traces: dict[str, DecodeTrace] = {}
    draft_passes: dict[str, int] = {}

    def so_far() -> Sweep:
        for lane in (alone, *lanes):
            done, trace = items.get(lane.name, []), traces.get(lane.name)
            if done and (trace is None or len(trace.steps) < len(done) - 1):  # a lane that moved since
                traces[lane.name] = pairs[lane.name].collect(lane, done)
        named = [(run, lane.name) for run, lane in zip(runs, lanes, strict=True)]
        ran = tuple((run.value, traces[name]) for run, name in named if name in traces)
        clock = tuple(
            (run.value, math.fsum(step.seconds.draft for step in traces[name].steps) / passes)
            for run, name in named
            if (passes := draft_passes.get(name, 0))
        )
        return replace(finding, alone=traces.get(TARGET_ONLY), runs=ran, draft_pass=clock)

    yield finding
    shown = time.monotonic()
    with closing(race([pairs[lane.name].request(lane) for lane in (alone, *lanes)])) as events:
        for event in events:
            items.setdefault(event.lane.name, []).append(event.item)
            draft_passes[event.lane.name] = draft_passes.get(event.lane.name, 0) + len(event.draft_pass_tokens)
            if time.monotonic() - shown >= TICK:
                finding = so_far()
                shown = time.monotonic()
            yield finding
    yield so_far()


def compare_drafters(
    pairs: Mapping[str, Pair], present: str, image: Pictures, messages: Messages, config: DecodingConfig
) -> Generator[Sweep]:
    """Race every draft, prompt lookup and the target alone, see :func:`specllava.lab.sweep.sweep_runs`.

    Args:
        pairs: by what their drafts are called; all of one target.
        present: the one that was chosen before, "" if that was none of them.

    Raises:
        ValueError: only one draft, a pair without one, or another target.
    """
    if len(pairs) < 2:
        raise ValueError(f"there is no second draft to compare with: this page has {', '.join(pairs) or 'none'}")
    first = pairs.get(present) or next(iter(pairs.values()))
    if any(pair.target is not first.target for pair in pairs.values()):
        raise ValueError("drafts are compared on one target, and these belong to several")
    config = replace(config, drafter="model")
    prompts = [pair.prompt(image, messages, config.max_new_tokens) for pair in pairs.values()]
    runs = [
        SweepRun(name, pair, prompt, config) for (name, pair), prompt in zip(pairs.items(), prompts, strict=True)
    ]
    own = next(run for run in runs if run.pair is first)
    runs.append(replace(own, value=LOOKUP, config=replace(config, drafter="prompt-lookup")))
    return sweep_runs(Sweep("drafter", (*pairs, LOOKUP), present), runs)
