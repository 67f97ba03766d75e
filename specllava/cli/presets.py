"""The command ``python -m specllava presets``: pairs that can be named, with no model at hand."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from specllava.models.presets import ASSETS, Preset, presets

NOTES = (
    "Tokens a pass: accepted guesses and the target's own, greedy. MMSpec: a third party's run of that benchmark "
    "(arXiv 2603.14989, 600 prompts); authors: a draft's own. No file of the hub was downloaded here, and nothing of "
    "it measured.",
    "A draft of your own, or another published one: --target and --draft; docs/drafters.md tells when to take which.",
)


@dataclass(frozen=True)
class Presets:
    """List the pairs that --preset names."""

    def run(self, console: Console) -> None:
        table = Table("preset", "target, draft and what is known of it", box=SIMPLE, pad_edge=False)
        for name, preset in presets().items():
            table.add_row(name, "\n".join(_lines(preset)))
        console.print(table)
        for note in NOTES:
            console.print(note, markup=False, highlight=False)


def _lines(preset: Preset) -> list[str]:
    if preset.draft is None:
        return [_location(preset.target), "no draft: name one with --draft"]
    kind = "" if preset.draft_format is None else f" ({preset.draft_format})"
    known = [line for line in (preset.measured, preset.licence) if line]
    return [_location(preset.target), _location(preset.draft) + kind, *known]


def _location(source: object) -> str:
    """Write where a model is: on the hub, or with the project."""
    name = str(source)
    return name if not name.startswith(str(ASSETS)) else f"ships: {name.removeprefix(f'{ASSETS.parent}/')}"
