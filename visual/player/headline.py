"""The four numbers above a race, as strings. All arithmetic is ``specllava.metrics``."""

from __future__ import annotations

import math
from dataclasses import replace

from specllava.metrics import Comparison, compare, saved_tokens, speedup, summarise
from specllava.trace import DecodeTrace

Headline = dict[str, str]
DASH = "–"


def headline(alone: DecodeTrace, together: DecodeTrace, finished: bool) -> Headline:
    """Return speed-up, tau, target passes and sameness of a race, running or over."""
    reference, candidate = summarise([alone]), summarise([together])
    big, small, state = _sameness(compare(alone, together), together, finished)
    return {
        "speedup": number(speedup(reference, candidate), "{:.1f}×"),
        "tau": number(candidate.tau, "{:.1f}"),
        "passes": str(candidate.target_passes),
        "instead": f"instead of {candidate.step_tokens}",
        "same": big,
        "same_note": small,
        "same_state": state,
        "rate_target-only": number(reference.tokens_per_second, "{:.0f} tokens/s"),
        "rate_speculative": number(candidate.tokens_per_second, "{:.0f} tokens/s"),
    }


def headline_of_one(trace: DecodeTrace, lane: str) -> Headline:
    """Return tau and target passes of a lane that runs by itself, with nothing to compare it with."""
    summary = summarise([trace])
    return {
        "speedup": DASH,
        "tau": number(summary.tau, "{:.1f}"),
        "passes": str(summary.target_passes),
        "instead": "",
        "same": DASH,
        "same_note": "one lane, nothing to compare",
        "same_state": "open",
        f"rate_{lane}": number(summary.tokens_per_second, "{:.0f} tokens/s"),
    }


def run_numbers(alone: DecodeTrace | None, lead: DecodeTrace) -> dict[str, float | None]:
    """Return what a run that is over is compared with another by; ``None`` where there is no such number.

    ``tau``, target passes, the speed-up while answering, and tokens that another branch than the favourite brought.
    """
    summary = summarise([lead])
    gain = math.nan if alone is None or alone is lead else speedup(summarise([alone]), summary)
    saved = sum(map(saved_tokens, lead.steps))
    values = {"tau": summary.tau, "passes": summary.target_passes, "speedup": gain, "saved": saved}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def headline_at(alone: DecodeTrace, together: DecodeTrace, clock: float) -> Headline:
    """Return the headline at ``clock`` seconds of both lanes' own clocks."""
    return headline(truncated_at(alone, clock), truncated_at(together, clock), finished=False)


def truncated_at(trace: DecodeTrace, clock: float) -> DecodeTrace:
    """Cut a trace to the steps that its lane had finished at ``clock`` seconds, the prefill included."""
    now, count = trace.prefill.total, 0
    for step in trace.steps:
        now += step.seconds.total
        if now > clock + 1e-9:
            break
        count += 1
    return replace(trace, steps=trace.steps[:count])


def _sameness(result: Comparison, together: DecodeTrace, finished: bool) -> tuple[str, str, str]:
    if not together.config.exact:
        return "drawn by chance", "both lanes have the target's distribution", "open"
    if result.identical and finished:
        return "identical ✓", f"{result.tokens} of {result.tokens} tokens", "same"
    parted = result.position is not None and result.position < result.tokens
    if not parted and not finished:
        return "same so far", f"{result.tokens} of {result.tokens} tokens", "open"
    if result.margin is None:
        return "one stopped", f"the first {result.tokens} tokens are the same", "differs"
    kind = "a near-tie, rounding decides" if result.near_tie else "more than rounding"
    assert result.position is not None  # a margin belongs to a position
    return f"differs at {result.position + 1} ✗", f"target's margin there {result.margin:.1e}: {kind}", "differs"


def number(value: float, form: str) -> str:
    """Format a number; a dash where there is none yet."""
    return DASH if math.isnan(value) or math.isinf(value) else form.format(value)
