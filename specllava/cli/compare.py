"""The command ``python -m specllava compare``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    check_outputs,
    load_pair,
    with_fallback_drafter,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.whole_file import write_whole

if TYPE_CHECKING:
    from specllava.metrics import Comparison

DRAWN_LINE: Final = "guesses drawn by chance: both answers have the target's distribution"


@dataclass(frozen=True)
class Compare:
    """Answer the same question with and without speculation, and say whether the answers are the same."""

    image: Path
    """Picture file."""

    prompt: str
    """The question."""

    json: Path | None = None
    """Write token ids and text of both lanes to this file."""

    trace: Path | None = None
    """Write both lanes' traces to this file: what trace view and the page open."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        from specllava.metrics import compare, speedup, summarise
        from specllava.models.images import read_size
        from specllava.race_file import race_json

        check_outputs(json=self.json, trace=self.trace)
        read_size(self.image)  # a missing picture is reported before a model is loaded
        pair = load_pair(self.pair)
        traces = pair.compare(
            self.image, self.prompt, with_fallback_drafter(pair, self.decoding, fallback="prompt-lookup")
        )
        plain, fast = traces["target-only"], traces["speculative"]
        verdict, reference, candidate = compare(plain, fast), summarise([plain]), summarise([fast])
        for title, trace in (("target only", plain), ("speculative", fast)):
            console.print(f"[bold]{title}[/]")
            console.print(trace.text + "\n", markup=False, highlight=False)
        console.print(_verdict_line(verdict) if self.decoding.exact else DRAWN_LINE)
        console.print(
            f"tau {candidate.tau:.2f} tokens per target pass, {candidate.target_passes} passes"
            f" instead of {reference.target_passes}"
        )
        console.print(
            f"{candidate.tokens_per_second:.0f} instead of {reference.tokens_per_second:.0f} tokens/s:"
            f" {speedup(reference, candidate):.2f} times as fast"
        )
        lanes = {"target_only": plain, "speculative": fast}
        write_json(
            self.json,
            {name: {"token_ids": list(t.token_ids), "text": t.text} for name, t in lanes.items()}
            | {"identical": verdict.identical},
        )
        if self.trace:
            beside = self.image.resolve().parent == self.trace.resolve().parent
            write_whole(self.trace, race_json(plain, fast, self.image.name if beside else None))


def _verdict_line(verdict: Comparison) -> str:
    """Write how two answers compare: identical, or where they part and by what margin of the target."""
    if verdict.identical:
        return f"identical: {verdict.tokens} of {verdict.tokens} tokens"
    kind = "near-tie" if verdict.near_tie else "DIFFERENT"
    margin = "one answer goes on" if verdict.margin is None else f"margin of the target {verdict.margin:.2g}"
    return f"{kind} at token {verdict.position}: {margin}"
