"""The commands of ``python -m specllava draft``: how a draft for a target is made, and written for other engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specllava.cli.options import announce_loading, hide_progress_bars, print_line, print_notice

if TYPE_CHECKING:
    from specllava.distill.new_draft import MadeDraft


@dataclass(frozen=True, kw_only=True)
class _Make:
    """What every command needs that writes a draft."""

    target: str
    """The model that it drafts for: an id of the hub, or a directory."""

    output: Path
    """Directory to write; it must not exist."""


@dataclass(frozen=True, kw_only=True)
class Init(_Make):
    """Make a draft of a plain language model, which gets a fresh projector, or of somebody's stand-alone LLaVA.

    Its vocabulary is aligned to the target's. A LLaVA's tower is dropped if it is the target's.
    """

    source: str
    """The model, with the target's tokens: an id of the hub such as JackFram/llama-68m, or a directory."""

    text_only: bool = False
    """No projector: the draft of a language model never sees a picture; it can be used untrained."""

    seed: int = 0
    """Of the projector's first weights."""

    def run(self, console: Console) -> None:
        announce_loading(f"{self.source} and {self.target}")
        from specllava.distill.new_draft import init_draft

        hide_progress_bars()
        _print_draft(console, init_draft(self.source, self.target, self.output, self.text_only, self.seed))


@dataclass(frozen=True, kw_only=True)
class Export(_Make):
    """Write an EAGLE-3 draft in the layout that the inference engines vLLM and SGLang load."""

    draft: str
    """The draft: a directory, or an id of the hub."""

    def run(self, console: Console) -> None:
        announce_loading(f"{self.draft} and the configuration of {self.target}")
        from specllava.distill.export import export_draft

        hide_progress_bars()
        _print_draft(console, export_draft(self.draft, self.target, self.output, print_notice))


def _print_draft(console: Console, made: MadeDraft) -> None:
    for line in (*made.notes, f"{made.directory}: a draft of {made.parameters / 1e6:.2f} million parameters"):
        print_line(console, line)
