"""The numbers above a race, as strings. All arithmetic is ``specllava.metrics``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from specllava.metrics import Comparison, RunTotals, compare, end_to_end_speedup, pass_ratio, speedup, summarise
from specllava.core.progress import LaneProgress, RaceProgress
from specllava.trace import DecodeTrace

Headline = dict[str, str]
DASH = "–"


def headline(alone: DecodeTrace, together: DecodeTrace, finished: bool) -> Headline:
    """Return speed-ups, tau, target passes, saved words and sameness of a race, running or over."""
    same = compare(alone, together)
    return _of_race(summarise([alone]), summarise([together]), same, together, finished)


def headline_of_one(trace: DecodeTrace, lane: str) -> Headline:
    """Return tau and target passes of a lane that runs by itself, with nothing to compare it with."""
    return _of_one(summarise([trace]), lane)


@dataclass(slots=True)
class RunningHeadline:
    """The headline of lanes at ever later moments of their own clocks."""

    _race: RaceProgress = field(default_factory=RaceProgress)
    _lane: LaneProgress = field(default_factory=LaneProgress)

    def at_race(self, alone: DecodeTrace, together: DecodeTrace, clock: float) -> Headline:
        """Return the headline of both lanes at ``clock`` seconds, no less than before."""
        race = self._race
        race.advance(alone, together, clock)
        return _of_race(race.reference.summary, race.candidate.summary, race.comparison, together, finished=False)

    def at_one(self, trace: DecodeTrace, lane: str, clock: float) -> Headline:
        """Return the headline of a lane that runs by itself at ``clock`` seconds, no less than before."""
        self._lane.advance(trace, clock)
        return _of_one(self._lane.summary, lane)


def _of_race(
    reference: RunTotals, candidate: RunTotals, comparison: Comparison, together: DecodeTrace, finished: bool
) -> Headline:
    big, small, state = _sameness(comparison, together, finished)
    faster, note, pace = _speedups(reference, candidate, together, finished)
    return {
        "speedup": faster,
        "speedup_note": note,
        "speedup_state": pace,
        **_counts(candidate),
        "instead": f"instead of {candidate.step_tokens}",
        "pass_ratio": _pass_ratio(reference, candidate),
        "same": big,
        "same_note": small,
        "same_state": state,
        "rate_target-only": number(reference.tokens_per_second, "{:.0f} tokens/s"),
        "rate_speculative": number(candidate.tokens_per_second, "{:.0f} tokens/s"),
    }


def _of_one(summary: RunTotals, lane: str) -> Headline:
    return {
        "speedup": DASH,
        "speedup_note": "one lane, nothing to compare",
        "speedup_state": "open",
        **_counts(summary),
        "instead": "",
        "pass_ratio": "",
        "same": DASH,
        "same_note": "one lane, nothing to compare",
        "same_state": "open",
        f"rate_{lane}": number(summary.tokens_per_second, "{:.0f} tokens/s"),
    }


def _counts(summary: RunTotals) -> Headline:
    return {
        "tau": number(summary.tau, "{:.1f}"),
        "passes": str(summary.target_passes),
        "saved": str(summary.saved),
        "saved_note": f"token{'' if summary.saved == 1 else 's'} saved by another branch",
    }


def _speedups(
    reference: RunTotals, candidate: RunTotals, together: DecodeTrace, finished: bool
) -> tuple[str, str, str]:
    """Return the speed-up while answering, a note with the one in all, and which way the first points.

    The ratio in all comes once both answers are whole: until then the lanes have not read for the same number of words.
    """
    answering = speedup(reference, candidate)
    shown, word, state = _pace(answering)
    if math.isnan(answering):
        return shown, "faster than the target alone", state
    note = f"{word} while answering"
    if state == "slower":
        note += f": {_slowness(reference, candidate)}"
    if finished:
        ratio, way, whole = _pace(end_to_end_speedup(reference, candidate))
        read = "picture" if together.prefill.vision_seconds else "prompt"
        words = way if whole == "open" else ratio if whole == state == "faster" else f"{ratio} {way}"
        note += f" · {words} in all, with reading the {read}"
    return shown, note, state


def _slowness(reference: RunTotals, candidate: RunTotals) -> str:
    """Say why a lane is slower: its mean step takes more of the target's time than the tokens that it brings."""
    price = candidate.decode_seconds / candidate.target_passes / reference.seconds_per_token
    parts = {"drafting": candidate.draft_seconds, "the target's passes": candidate.verify_seconds}
    part, seconds = max(parts.items(), key=lambda entry: entry[1])
    share = f"{100 * seconds / candidate.decode_seconds:.0f} % of it {part}"
    return f"a step took the time of {price:.2f} tokens alone ({share}) and brought {candidate.tau:.2f}"


def _pace(ratio: float) -> tuple[str, str, str]:
    """Return how many times faster or slower a ratio of speeds is, and which of both in words and as a state."""
    if math.isnan(ratio) or not 0 < ratio < math.inf:
        return DASH, "", "open"
    shown = f"{max(ratio, 1 / ratio):.1f}×"
    if shown == "1.0×":
        return shown, "as fast", "open"
    return (shown, "faster", "faster") if ratio > 1 else (shown, "slower", "slower")


def _pass_ratio(reference: RunTotals, candidate: RunTotals) -> str:
    """Say what a pass that checks a tree took on this machine, in passes of a single token."""
    ratio = pass_ratio(reference, candidate)
    if math.isnan(ratio):
        return ""
    mean = (candidate.drafted + candidate.target_passes) / candidate.target_passes
    drafting = 100 * candidate.draft_seconds / candidate.decode_seconds
    return (
        f"On average a pass checks {mean:.0f} tokens and takes {ratio:.1f} times as long as over one; drafting took"
        f" {drafting:.0f} % of the time."
    )


def _sameness(result: Comparison, together: DecodeTrace, finished: bool) -> tuple[str, str, str]:
    if not together.config.keeps_tokens:
        return "drawn by chance", "both lanes have the target's distribution", "open"
    if result.identical and finished:
        return "identical ✓", f"{result.tokens} of {result.tokens} tokens; the first comes from reading", "same"
    parted = result.position is not None and result.position < result.tokens
    if not parted and not finished:
        return "same so far", f"{result.tokens} of {result.tokens} tokens", "open"
    if result.margin is None:
        return "one stopped", f"the first {result.tokens} tokens are the same", "differs"
    kind = "a near-tie, rounding decides" if result.near_tie else "more than rounding"
    assert result.position is not None  # a margin belongs to a position
    whose = "the draw's" if together.config.temperature > 0 else "target's"
    return f"differs at {result.position + 1} ✗", f"{whose} margin there {result.margin:.1e}: {kind}", "differs"


def number(value: float, form: str) -> str:
    """Format a number; a dash where there is none yet."""
    return DASH if math.isnan(value) or math.isinf(value) else form.format(value)
