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
            table.add_row(name, _location(preset.target), _location(preset.draft))
        console.print(table)


def _location(source: object) -> str:
    """Write where a model is: on the hub, or with the project."""
    if source is None:
        return "none: name one with --draft"
    name = str(source)
    return name if not name.startswith(str(ASSETS)) else f"ships: {name.removeprefix(f'{ASSETS.parent}/')}"
