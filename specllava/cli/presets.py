"""The command ``python -m specllava presets``: pairs that can be named, what they take, and which fit this machine."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from specllava.cli.options import print_line
from specllava.core.files import cached
from specllava.models.loading.presets import ASSETS, Preset, presets

NOTES = (
    "Memory is that of both models' weights in bfloat16 and of caches for 4,096 tokens, by the published"
    " configurations; --quantization int8 or int4 stores the target's decoder in fewer bits on a GPU. No file of the"
    " hub was downloaded here, and nothing of it measured.",
    "A draft of your own, or another published one: --target and --draft; docs/drafters.md tells when to take which.",
)


@dataclass(frozen=True)
class Presets:
    """List the pairs that --preset names: what each takes, what is known of it, and which fit this machine."""

    markdown: bool = False
    """Print the table of docs/models.md instead, which holds for every machine."""

    def run(self, console: Console) -> None:
        for line in markdown_table() if self.markdown else [*listing(_free()), ""]:
            print_line(console, line)
        for note in () if self.markdown else NOTES:
            console.print(note, markup=False, highlight=False)


def listing(free: float) -> list[str]:
    """Return the lines of the list for people.

    Args:
        free: GB of memory.
    """
    lines = [f"{free:.1f} GB of memory are free here. Sizes in GB.", "", _row("preset", "download", "bfloat16", "fits")]
    for name, preset in presets().items():
        size = "" if preset.shipped else f"{preset.memory:.1f}"
        fits = preset.missing == "" and preset.memory <= free
        lines.append(_row(name, _download(preset), size, "yes" if fits else "no"))
        draft = "no draft: name one with --draft" if preset.draft is None else _location(preset.draft)
        lines.append(f"    {_location(preset.target)} + {draft}")
        if known := "; ".join(one for one in (preset.measured, preset.licence) if one):
            lines.append(f"    {known}")
    return lines


def markdown_table() -> list[str]:
    """Return the table of docs/models.md."""
    lines = [
        "| `--preset` | target | draft | download, GB | bfloat16, GB | τ, and from whom |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, preset in presets().items():
        size = "" if preset.shipped else f"{preset.memory:.1f}"
        target = f"`{_location(preset.target)}`"
        draft = "none" if preset.draft is None else f"`{_location(preset.draft)}`"
        cells = f"`{name}`", target, draft, _download(preset), size, preset.measured
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _row(name: str, download: str, size: str, fits: str) -> str:
    return f"{name:<28}{download:>9}{size:>10}   {fits}"


def _download(preset: Preset) -> str:
    if not preset.shipped:
        return f"{preset.download:.1f}"
    return "fetched" if preset.fetched else "ships"


def _location(source: object) -> str:
    """Write where a model is: its id of the hub, or its directory in the project or, as most have it, in the cache."""
    return str(source).removeprefix(f"{ASSETS.parent}/").replace(str(cached("")), "~/.cache/specllava")


def _free() -> float:
    import torch

    from specllava.models.loading.memory import GB, free_bytes

    return free_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"), spread=False) / GB
