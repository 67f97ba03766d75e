"""The command ``python -m specllava presets``: pairs that can be named, what they take, and which fit this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from specllava.cli.options import print_line
from specllava.files import cached as cached_path
from specllava.models.memory import (
    ENOUGH,
    GB,
    PRECISIONS,
    Machine,
    download_bytes,
    fit,
    preset_memory,
    this_machine,
)
from specllava.models.presets import ASSETS, presets

NOTES = (
    "On this machine: the precision in which a pair fits what is free. Ask for it by --dtype bfloat16; on a GPU also by"
    " --quantization int8 or int4.",
    f"Memory: weights of both models, and caches for {ENOUGH:,} tokens of prompt and answer; what else a pass takes"
    " comes on top. int8 and int4 hold the target's decoder in so many bits, the rest in bfloat16.",
    "Sizes are those of the published configurations, downloads about. Tokens a pass: accepted guesses and the"
    " target's own (tau), greedy. MMSpec: a third party's run of that benchmark (arXiv 2603.14989, 600 prompts);"
    " authors: a draft's own. No file of the hub was downloaded here, and nothing of it measured.",
    "A draft of your own, or another published one: --target and --draft; docs/drafters.md tells when to take which.",
)
HEADINGS = ("preset", "download", *(precision.name for precision in PRECISIONS), "on this machine")


@dataclass(frozen=True)
class Presets:
    """List the pairs that --preset names: what each takes, what is known of it, and which fit this machine."""

    json: bool = False
    """Print a JSON list instead, for programs; bytes, and the options that load a pair here."""

    markdown: bool = False
    """Print the table of docs/models.md instead, which holds for every machine."""

    def run(self, console: Console) -> None:
        if self.markdown:
            lines = markdown_table()
        elif self.json:
            lines = [json.dumps(preset_records(this_machine()), indent=1)]
        else:
            lines = listing(this_machine())
        for line in lines:
            print_line(console, line)
        if not (self.markdown or self.json):
            for note in NOTES:
                console.print(note, markup=False, highlight=False)


def listing(machine: Machine) -> list[str]:
    """Return the lines of the list for people, none wider than 100 columns."""
    where = "GPU" if machine.kind == "cuda" else "CPU"
    lines = [f"{machine.free / GB:.1f} GB of memory are free here ({where}). Sizes in GB.", "", _row(*HEADINGS)]
    for record in preset_records(machine):
        memory, cached = record["memory_bytes"], record["cached"]
        download = f"{record['download_bytes'] / GB:.1f}" if memory else "ships" if record["ships"] else "fetched"
        sizes = ["" if memory is None else f"{memory[one.name] / GB:.1f}" for one in PRECISIONS]
        here = "fits" if memory is None and cached["target"] else record["fits"] or record["would_fit"] or "-"
        lines.append(_row(record["name"], download, *sizes, here))
        models = [
            f"{record[role]}{' (downloaded)' if cached[role] and not record['ships'] else ''}"
            for role in ("target", "draft")
            if record[role] is not None
        ]
        lines.append(f"    {' + '.join(models)}{' + no draft: name one with --draft' if len(models) == 1 else ''}")
        if known := "; ".join(one for one in (record["measured"], record["licence"]) if one):
            lines.append(f"    {known}")
    return [*lines, ""]


def preset_records(machine: Machine) -> list[dict[str, Any]]:
    """Return the facts of each preset as data: fields in bytes, ``fits`` and ``options`` of this machine."""
    from specllava.models.checkpoint import is_cached

    records = []
    for name, preset in presets().items():
        found, shipped = fit(preset, machine), preset.shipped
        models = {"target": preset.target, "draft": preset.draft}
        counted = {one.name: preset_memory(preset, one) for one in PRECISIONS}
        records.append({
            "name": name, **{role: None if one is None else _location(one) for role, one in models.items()},
            **asdict(preset.reading), "tree": dict(preset.tree), "ships": shipped and not preset.fetched,
            "download_bytes": download_bytes(preset),
            "cached": {
                role: not preset.missing if shipped else one is not None and is_cached(str(one))
                for role, one in models.items()
            },
            "memory_bytes": None if shipped else {one: int(kept.total) for one, kept in counted.items() if kept},
            "context": ENOUGH, "measured": preset.measured, "licence": preset.licence,
            "device": machine.kind, "free_bytes": machine.free,
            "fits": None if preset.missing else found.precision or None,
            "would_fit": found.missing or None, "options": _options(found.dtype, found.quantization),
        })  # fmt: skip
    return records


def markdown_table() -> list[str]:
    """Return the table of docs/models.md."""
    lines = [
        "| `--preset` | target | draft | download, GB | bfloat16, GB | int4, GB | τ, and from whom |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    whole, small = (one for one in PRECISIONS if one.name in ("bfloat16", "int4"))
    for name, preset in presets().items():
        sizes = [preset_memory(preset, one) for one in (whole, small)]
        gigabytes = ["" if one is None else f"{one.total / GB:.1f}" for one in sizes]
        local = "fetched" if preset.fetched else "ships"
        download = local if preset.shipped else f"{download_bytes(preset) / GB:.1f}"
        target = f"`{_location(preset.target)}`"
        draft = "none" if preset.draft is None else f"`{_location(preset.draft)}`"
        lines.append("| " + " | ".join((f"`{name}`", target, draft, download, *gigabytes, preset.measured)) + " |")
    return lines


def _row(name: str, download: str, *rest: str) -> str:
    *sizes, here = rest
    return f"{name:<28}{download:>8}" + "".join(f"{size:>9}" for size in sizes) + f"   {here}".rstrip()


def _options(dtype: str, quantization: str) -> str:
    """Write the options of the command line that load so, those that are the default left out."""
    given: Iterator[str] = (
        f"--{name} {value}"
        for name, value, usual in (("dtype", dtype, "auto"), ("quantization", quantization, "none"))
        if value != usual
    )
    return " ".join(given)


def _location(source: object) -> str:
    """Write where a model is: its id of the hub, or its directory in the project or, as most have it, in the cache."""
    return str(source).removeprefix(f"{ASSETS.parent}/").replace(str(cached_path("")), "~/.cache/specllava")
