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

TICK = 0.25  # seconds between two looks at a sweep that is running, so that it can be stopped
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
    """Decode the prompt at every value and by the target alone; what is finished, every :data:`TICK` seconds and last.

    The runs take turns step by step, each with its own clock, so that a busy machine slows all of them alike. Each
    has caches of its own while it runs.
    """
    variants: list[dict[str, Any]] = [{field: value} for value in values]
    lanes = [Lane(str(number), replace(config, **variant), prompt) for number, variant in enumerate(variants)]
    alone = Lane(TARGET_ONLY, replace(config, drafter="none"), prompt)
    said: dict[str, list[Event]] = {}
    found = Sweep(field, tuple(values), getattr(config, field))
    shown = 0.0
    yield found
    with closing(race(pair.bundle, [alone, *lanes])) as events:
        for event in events:
            said.setdefault(event.lane, []).append(event.item)
            if event.finished:
                trace = collect(pair.bundle, event.run, said.pop(event.lane))
                if event.lane == TARGET_ONLY:
                    found = replace(found, alone=trace)
                else:
                    found = replace(found, runs=(*found.runs, (values[int(event.lane)], trace)))
            if time.monotonic() - shown >= TICK:
                shown = time.monotonic()
                yield found
    yield found
