"""Sweep one option, everything else equal."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from specllava.config import DecodingConfig
from specllava.decoding import Event
from specllava.findings.replays import ReplayStep, priced
from specllava.findings.sweep import SWEEP_VALUES, Sweep, Value
from specllava.growth.rules import RULE_INFOS
from specllava.lane import TARGET_ONLY, Lane
from specllava.pair import Pair
from specllava.runtime.pass_widths import pass_widths
from specllava.runtime.prompt import Prompt
from specllava.trace import DecodeTrace, StepTrace

TICK = 0.5  # seconds between two new findings of a sweep that is running


def sweep_values(config: DecodingConfig, field: str) -> tuple[Value, ...]:
    """Return the values of an option that a sweep tries, the present one among them.

    Raises:
        ValueError: an option that cannot be swept, or that the rule does not use.
    """
    if field not in SWEEP_VALUES:
        raise ValueError(f"{field!r} is no knob: choose one of {', '.join(SWEEP_VALUES)}")
    if field != "depth" and field not in RULE_INFOS[config.rule].options:
        users = ", ".join(info.name for info in RULE_INFOS.values() if field in info.options)
        raise ValueError(f"the {config.rule} rule does not look at {field}: take {users}, or turn another knob")
    return tuple(sorted({*SWEEP_VALUES[field], getattr(config, field)}))  # type: ignore[type-var]


def sweep(pair: Pair, prompt: Prompt, config: DecodingConfig, field: str, values: Sequence[Value]) -> Generator[Sweep]:
    """Decode the prompt at every value and by the target alone; how far all have come, after each decode step.

    A new finding comes every :data:`TICK` seconds; in between, the last one is yielded unchanged. The runs take turns
    step by step, each with its own clock, so that a busy machine slows all of them alike and a sweep that is stopped
    has something to say of each. Passes are counted too and priced at their measured costs, which other work does not
    change. Every run has caches of its own.

    Raises:
        ValueError: a pair without a draft.
    """
    variants: list[dict[str, Any]] = [{field: value} for value in values]
    lanes = [Lane(str(number), replace(config, **variant), prompt) for number, variant in enumerate(variants)]
    alone = Lane(TARGET_ONLY, replace(config, drafter="none"), prompt)
    items: dict[str, list[Event]] = {}
    traces: dict[str, DecodeTrace] = {}
    counted: dict[str, list[ReplayStep]] = {}
    costs, draft = pair.measured_costs, pair.draft
    assert draft is not None  # without one nothing could be timed
    found = Sweep(field, tuple(values), getattr(config, field))

    def so_far() -> Sweep:
        for lane in (alone, *lanes):
            run, trace = items.get(lane.name, []), traces.get(lane.name)
            if run and (trace is None or len(trace.steps) < len(run) - 1):  # a lane that moved since
                traces[lane.name] = pair.collect(lane, run)
        runs = tuple(
            (value, traces[lane.name]) for lane, value in zip(lanes, values, strict=True) if lane.name in traces
        )
        steps = [(value, counted.get(lane.name)) for lane, value in zip(lanes, values, strict=True)]
        worth = tuple((value, priced(of_run, costs)) for value, of_run in steps if of_run)
        return replace(found, alone=traces.get(TARGET_ONLY), runs=runs, priced=worth)

    yield found
    shown = time.monotonic()
    with pass_widths(draft) as widths, closing(pair.race_lanes([alone, *lanes])) as events:
        for event in events:
            items.setdefault(event.lane.name, []).append(event.item)
            if isinstance(event.item, StepTrace):
                counted.setdefault(event.lane.name, []).append(ReplayStep.counted(event.item, widths))
            widths.clear()
            if time.monotonic() - shown >= TICK:
                found = so_far()
                shown = time.monotonic()
            yield found
    yield so_far()
