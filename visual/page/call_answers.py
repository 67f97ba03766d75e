"""What calls of the API are answered with: typed dictionaries, made of the traces of their lanes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypedDict

from specllava.core.metrics import compare, speedup, summarise
from specllava.core.race_file import race_json
from specllava.core.trace import DecodeTrace
from visual.player.frames import SPECULATIVE, TARGET_ONLY, Ending

Traces = Mapping[str, DecodeTrace]


class Answer(TypedDict):
    """An answer of one lane, of ``/generate``.

    ``seconds`` is decoding on the lane's own clock, the prompt's pass apart; ``tau`` is tokens per target pass.
    """

    answer: str
    tokens: int
    passes: int
    tau: float | None
    seconds: float
    ended: str | None


class Compared(TypedDict):
    """Both answers to one question, of ``/compare`` and ``/compare_stream``.

    ``ended`` is null while the lanes run, then ``finished``, ``deadline`` or ``stopped``; ``equal`` is null unless both
    lanes finished, and ``trace`` is the race file as JSON, there at the end.
    """

    target_only: Answer | None
    speculative: Answer | None
    equal: bool | None
    first_difference: int | None
    tau: float | None
    passes: int
    speed_up: float | None
    ended: str | None
    trace: dict[str, Any] | None


def answer_of(trace: DecodeTrace, ended: Ending | None) -> Answer:
    """Return what one lane said and what it took; ``ended`` is ``None`` while it runs."""
    totals = summarise([trace])
    return Answer(
        answer=trace.text, tokens=totals.tokens, passes=totals.target_passes, tau=_number(totals.tau),
        seconds=totals.decode_seconds, ended=ended,
    )  # fmt: skip


def answer_one(traces: Traces, ended: Ending | None) -> Answer | None:
    """Return the answer of the only lane; ``None`` before it has begun."""
    return next((answer_of(trace, ended) for trace in traces.values()), None)


def answer_both(traces: Traces, ended: Ending | None) -> Compared:
    """Return both lanes' answers, and how they compare."""
    alone, together = traces.get(TARGET_ONLY), traces.get(SPECULATIVE)
    found = compare(alone, together) if alone and together and ended == "finished" else None
    lead = answer_of(together, ended) if together else None
    return Compared(
        target_only=answer_of(alone, ended) if alone else None,
        speculative=lead,
        equal=found.identical if found else None,
        first_difference=found.position if found else None,
        tau=lead["tau"] if lead else None,
        passes=lead["passes"] if lead else 0,
        speed_up=_number(speedup(summarise([alone]), summarise([together]))) if alone and together else None,
        ended=ended,
        trace=json.loads(race_json(alone, together)) if ended else None,
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
