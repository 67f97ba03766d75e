"""One setting turned, everything else equal."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from specllava.config import RULES, DecodingConfig, RuleName
from specllava.decoding import Event, Lane, collect, race
from specllava.findings.sweep import KNOBS, Sweep, Value
from specllava.models.prompt import Prompt
from specllava.pair import TARGET_ONLY, Pair

TICK = 0.5  # seconds between two looks at a sweep that is running, after which it can be stopped
# Rules that never look at a setting, so that turning it shows nothing.
BLIND: dict[str, frozenset[RuleName]] = {
    "entropy_threshold": frozenset(RULES) - {"entropy"},
    "max_branches": frozenset(RULES) - {"entropy", "cost-aware"},
}


def knob_values(config: DecodingConfig, field: str) -> tuple[Value, ...]:
    """The values that a knob is turned to, the present one among them.

    Raises:
        ValueError: no such knob, or the rule does not look at it.
    """
    if field not in KNOBS:
        raise ValueError(f"{field!r} is no knob: choose one of {', '.join(KNOBS)}")
    if config.rule in BLIND.get(field, ()):
        raise ValueError(f"the {config.rule} rule does not look at {field}: take entropy, or turn another knob")
    return tuple(sorted({*KNOBS[field], getattr(config, field)}))  # type: ignore[type-var]


def sweep(pair: Pair, prompt: Prompt, config: DecodingConfig, field: str, values: Sequence[Value]) -> Generator[Sweep]:
    """Decode the prompt at every value and by the target alone; how far all have come, every :data:`TICK` seconds.

    The runs take turns step by step, each with its own clock, so that a busy machine slows all of them alike and a
    sweep that is stopped has something to say of each. Every run has caches of its own.
    """
    variants: list[dict[str, Any]] = [{field: value} for value in values]
    lanes = [Lane(str(number), replace(config, **variant), prompt) for number, variant in enumerate(variants)]
    alone = Lane(TARGET_ONLY, replace(config, drafter="none"), prompt)
    said: dict[str, list[Event]] = {}
    start = Sweep(field, tuple(values), getattr(config, field))

    def so_far() -> Sweep:
        runs = {lane.name: collect(pair.bundle, lane, said[lane.name]) for lane in (alone, *lanes) if lane.name in said}
        reference = runs.pop(TARGET_ONLY, None)
        return replace(start, alone=reference, runs=tuple((values[int(name)], run) for name, run in runs.items()))

    yield start
    shown = time.monotonic()
    with closing(race(pair.bundle, [alone, *lanes])) as events:
        for event in events:
            said.setdefault(event.lane, []).append(event.item)
            if time.monotonic() - shown >= TICK:
                yield so_far()
                shown = time.monotonic()
    yield so_far()
