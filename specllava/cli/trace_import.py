"""The command ``python -m specllava trace import``: acceptance counts of other engines' responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tyro
from rich.console import Console

from specllava.cli.options import check_outputs, print_line, write_json
from specllava.core.acceptance import Acceptance
from specllava.core.files import write_whole
from specllava.findings.serving_log import ServingLog, read_log

BARS: Final = "▁▂▃▄▅▆▇█"
WIDEST: Final = 40  # characters of the longest bar
RIBBONS: Final = 3  # first requests that are printed step by step
STEPS: Final = 100  # of each of them
NO_TREES: Final = "Such logs count guesses and hold no trees: which were tried, and why one failed, they do not tell."
NO_ORDER: Final = "The log has no order of steps, so there is no ribbon: vLLM gives it at its level detailed."


@dataclass(frozen=True)
class ImportLog:
    """Show the acceptance counts in responses of vLLM or SGLang, and what they must cost to pay."""

    file: tyro.conf.Positional[Path]
    """A response a line in a .jsonl, or one response, or a JSON list of them (docs/trace.md)."""

    costs: tuple[float, float, float] | None = None
    """Milliseconds of a target pass over one token, of one that checks 20 guesses, and of one of the draft's passes:
    then the speed-up is computed."""

    levels: float | None = None
    """Passes of the draft a step, where guesses are no chain: 0 for n-grams. A pass a guess without it."""

    html: Path | None = None
    """Write ribbon, histogram and acceptance per position to this page, which needs no server."""

    json: Path | None = None
    """Write the counts by vLLM's names to this file; "Does it pay for me?" opens it."""

    def run(self, console: Console) -> None:
        check_outputs(html=self.html, json=self.json)
        if self.costs is not None and not (min(self.costs[:2]) > 0 and self.costs[2] >= 0):
            raise ValueError(f"--costs are {' '.join(map(str, self.costs))}: passes of the target take more than 0 ms")
        if self.levels is not None and not 0 <= self.levels <= 1e4:
            raise ValueError(f"--levels is {self.levels}: 0 to 10,000 passes of the draft a step are possible")
        log = read_log(self.file)
        lines = [*summary_lines(log), pays_line(log.pooled, self._levels(log.pooled), self.costs), NO_TREES]
        for line in (*lines, *drawn_lines(log)):
            print_line(console, line)
        if self.html:
            from visual.player.acceptance_page import acceptance_page

            write_whole(self.html, acceptance_page(self.file.name, log, lines))
        pooled = {"metrics": {"speculative_decoding": log.pooled.as_json()}, "levels": self._levels(log.pooled)}
        write_json(self.json, {**pooled, "requests": [request.as_json(steps=True) for request in log.requests]})

    def _levels(self, pooled: Acceptance) -> float:
        return pooled.draft_tokens / pooled.num_steps if self.levels is None else self.levels


def summary_lines(log: ServingLog) -> Iterator[str]:
    """Yield what the log holds, and its means."""
    pooled, left_out = log.pooled, f"; {log.silent} responses without counts" if log.silent else ""
    yield f"{len(log.requests)} requests, {pooled.num_steps} steps{left_out}"
    rate = "no guess" if pooled.rate is None else f"{pooled.rate:.0%} of {pooled.draft_tokens} guesses accepted"
    yield f"mean acceptance length {pooled.mean_length:.2f} tokens a step, the target's own included; {rate}"
    positions = ", ".join(f"{share:.0%}" for share in pooled.per_position)
    yield f"acceptance by position: {positions or 'none'}"


def pays_line(pooled: Acceptance, levels: float, costs: tuple[float, float, float] | None) -> str:
    """Say when a mean step pays, or whether it does at given costs."""
    from specllava.findings.replays import GUESSES

    tau, guesses = pooled.mean_length or 1.0, pooled.draft_tokens / pooled.num_steps
    if costs is None:
        return (
            f"does it pay? where a step of {levels:.1f} passes of the draft and one that checks {guesses:.1f} guesses"
            f" takes less than {tau:.2f} passes of the target alone: --costs computes it"
        )
    one, many, level = costs
    step = levels * level + one + (many - one) * guesses / GUESSES
    speed = tau * one / step
    verdict = "it pays" if speed > 1 else "it does not pay"
    edge = f"break-even at {tau / speed:.2f} tokens a step"
    return f"does it pay? {verdict}: {speed:.2f} times as fast while answering, {edge}"


def drawn_lines(log: ServingLog) -> Iterator[str]:
    """Yield histogram and ribbons as text."""
    histogram = log.pooled.histogram
    yield "accepted guesses, steps:"
    for reach, steps in enumerate(histogram):
        yield f"  {reach:>3}  {'█' * round(WIDEST * steps / max(histogram))} {steps}"
    if not log.ordered:
        yield NO_ORDER
        return
    most = max(1, len(histogram) - 1)
    for number, request in enumerate(log.requests[:RIBBONS], start=1):
        shown = request.steps[:STEPS]
        bars = "".join(BARS[step.accepted * (len(BARS) - 1) // most] for step in shown)
        rest = len(request.steps) - len(shown)
        yield f"request {number}, step by step: {bars}{f' and {rest} more' if rest else ''}"
