"""Runs of the shipped pair with what came of them: token ids, trees and verdicts that no change may alter.

``recorded_runs.json`` holds prompts, settings and outcomes, so a replay depends on no default. It is never recorded
anew: commit 6362268 has what recorded it. Only ``run`` knows how the project is called.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from specllava.pair import Pair
from specllava.trace import DecodeTrace

RECORD: Final = Path(__file__).with_suffix(".json")
SIDE: Final = 128  # pixels of a scene: what the tower reads, so that nothing is resized


def run(pair: Pair, prompt: dict[str, Any], config: dict[str, Any]) -> DecodeTrace:
    """One run; fields of settings that are retired are left out."""
    from recipes.toy.draw import draw_scene
    from recipes.toy.scene import sample_scene
    from specllava.config import DecodingConfig
    from specllava.spec_decode.loop import Lane
    from specllava.trace_fields import without_retired

    picture = None if prompt["scene"] is None else draw_scene(sample_scene(prompt["scene"], prompt["split"]), SIDE)
    chosen = DecodingConfig(**without_retired("DecodingConfig", config))
    return pair.run(Lane.of(chosen, pair.prompt(picture, prompt["messages"])))


def outcome(trace: bytes) -> dict[str, Any]:
    """What a trace's JSON document says of the run, floats left out: a digest of everything, and the plain token ids.

    ``steps`` has four hex digits for each step, so that the first one that differs can be named.
    """
    document = json.loads(trace)
    first = document["prefill"]["first_token"]
    steps = [
        [
            step["tree"]["tokens"], step["tree"]["parents"], step["verification"]["accepted"],
            step["verification"]["next_token"], step["emitted"],
        ]
        for step in document["steps"]
    ]  # fmt: skip
    return {
        "digest": _digest([first, steps, document["finish_reason"]], 16),
        "steps": "".join(_digest(step, 4) for step in steps),
        "finish": document["finish_reason"],
        "tokens": [first, *(token for step in document["steps"] for token in step["emitted"])],
    }


def difference(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Where a run parts from its record, in one line with both answers; empty if it does not."""
    if all(recorded[key] == now[key] for key in now):
        return ""
    before, after = (_fours(one["steps"]) for one in (recorded, now))
    places = (place for place, pair in enumerate(zip(before, after, strict=False), start=1) if pair[0] != pair[1])
    shorter = min(len(before), len(after))
    step = next(places, None if len(before) == len(after) else shorter + 1)
    if recorded["tokens"][0] != now["tokens"][0]:
        where = "the first token differs"
    elif step is None:
        where = f"it finishes by {now['finish']!r} and was recorded as {recorded['finish']!r}, or a digest hides a step"
    else:
        where = f"step {step} differs (recorded: {len(before)} steps, now: {len(after)})"
    equal = recorded["tokens"] == now["tokens"]
    ids = "the same token ids" if equal else f"token ids {recorded['tokens']} became {now['tokens']}"
    return f"{recorded['name']}: {where}; {ids}; config {recorded['config']}, prompt {recorded['prompt']}"


def _digest(content: object, length: int) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:length]


def _fours(digits: str) -> list[str]:
    return [digits[place : place + 4] for place in range(0, len(digits), 4)]
