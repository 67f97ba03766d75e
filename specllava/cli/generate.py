"""The command ``python -m specllava generate``."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from specllava.cli.options import AnswerOptions, report_unused_draft, write_json
from specllava.files import write_whole
from specllava.metrics import summarise
from specllava.question import with_system


@dataclass(frozen=True, kw_only=True)
class Generate(AnswerOptions):
    """Answer a question speculatively, about pictures or none."""

    prompt: str
    """The question."""

    def run(self, console: Console) -> None:
        pair, media, decoding = self.prepare(fallback="none")
        # Without a trace file nobody reads what the target computed for every node: it is not recorded.
        trace = pair.generate(media, with_system(self.prompt, self.system), decoding, record=self.trace is not None)
        console.print(trace.text, markup=False, highlight=False)
        report_unused_draft(pair.draft_name, decoding.drafter, summarise([trace]))
        name = "target_only" if decoding.drafter == "none" else "speculative"
        write_json(self.json, {name: {"token_ids": list(trace.token_ids), "text": trace.text}})
        if self.trace:
            write_whole(self.trace, trace.to_json())
