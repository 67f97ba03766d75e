"""The command ``python -m specllava presets``: pairs that can be named, with no model at hand."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from specllava.models.presets import ASSETS, presets


@dataclass(frozen=True)
class Presets:
    """List the pairs that --preset names."""

    def run(self, console: Console) -> None:
        table = Table("preset", "target", "draft", box=SIMPLE, pad_edge=False)
        for name, preset in presets().items():
            shown = [_shown(source) for source in (preset.target, preset.draft)]
            table.add_row(name, *shown)
        console.print(table)


def _shown(source: object) -> str:
    """Where a model is: on the hub, or with the project."""
    if source is None:
        return "none: name one with --draft"
    place = str(source)
    return place if not place.startswith(str(ASSETS)) else f"ships: {place.removeprefix(f'{ASSETS.parent}/')}"
