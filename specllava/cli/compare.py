"""The command ``python -m specllava compare``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console

from specllava.cli.options import AnswerOptions, picture_beside, report_unused_draft, write_json
from specllava.core.files import write_whole
from specllava.core.question import with_system
from specllava.core.race_file import race_json

if TYPE_CHECKING:
    from specllava.core.metrics import Comparison

DRAWN_LINE: Final = "guesses drawn by chance: both answers have the target's distribution"


@dataclass(frozen=True, kw_only=True)
class Compare(AnswerOptions):
    """Answer with and without speculation, and say whether the answers are the same."""

    prompt: str
    """The question."""

    def run(self, console: Console) -> None:
        from specllava.core.metrics import compare, speedup, summarise

        pair, media, decoding = self.prepare(fallback="prompt-lookup")
        traces = pair.compare(media, with_system(self.prompt, self.system), decoding)
        plain, fast = traces["target-only"], traces["speculative"]
        verdict, reference, candidate = compare(plain, fast), summarise([plain]), summarise([fast])
        for title, trace in (("target only", plain), ("speculative", fast)):
            console.print(f"[bold]{title}[/]")
            console.print(trace.text + "\n", markup=False, highlight=False)
        console.print(_verdict_line(verdict) if self.decoding.keeps_tokens else DRAWN_LINE)
        if reference.target_passes and candidate.target_passes:
            console.print(
                f"tau {candidate.tau:.2f} tokens per target pass, {candidate.target_passes} passes"
                f" instead of {reference.target_passes}"
            )
            console.print(
                f"{candidate.tokens_per_second:.0f} instead of {reference.tokens_per_second:.0f} tokens/s:"
                f" {speedup(reference, candidate):.2f} times as fast"
            )
        else:
            console.print("the prompt's own pass gave the whole answer: nothing was guessed, and no speed compares")
        report_unused_draft(pair.draft_name, decoding.drafter, candidate)
        lanes = {"target_only": plain, "speculative": fast}
        write_json(
            self.json,
            {name: {"token_ids": list(t.token_ids), "text": t.text} for name, t in lanes.items()}
            | {"identical": verdict.identical},
        )
        if self.trace:
            image = self.only_image
            beside = None if image is None else picture_beside(image, self.trace)
            write_whole(self.trace, race_json(plain, fast, beside))


def _verdict_line(verdict: Comparison) -> str:
    """Write how two answers compare: identical, or where they part and by what margin of the target."""
    if verdict.identical:
        return f"identical: {verdict.tokens} of {verdict.tokens} tokens"
    kind = "near-tie" if verdict.near_tie else "DIFFERENT"
    margin = "one answer goes on" if verdict.margin is None else f"margin of the target {verdict.margin:.2g}"
    return f"{kind} at token {verdict.position}: {margin}"
