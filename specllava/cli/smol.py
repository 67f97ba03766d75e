"""The commands of ``python -m specllava smol``: the recipe of the pair smol, and what it reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    announce_loading,
    check_outputs,
    load_pair,
    print_line,
    write_json,
)
from specllava.core.config import DecodingConfig


@dataclass(frozen=True)
class TrainSmol:
    """Make the pair smol from nothing but SmolLM2 and the toy pair's tower: hours; may be killed and repeated."""

    output: Path
    """Directory of the run: sight and draft (what ships), target, and a directory for each draft appear in it."""

    drafts: tuple[Literal["eagle3", "eagle", "vlm"], ...] = ("eagle3", "eagle", "vlm")
    """Drafts to distil; eagle3 ships."""

    seed: int = 0
    """Of weights and of the order of scenes; another one gives another target."""

    def run(self, console: Console) -> None:
        announce_loading("the recipe of the pair smol")
        from specllava.smol.drafts import DraftsRecipe, distil_drafts
        from specllava.smol.train import SmolRecipe, train_target

        self.output.mkdir(parents=True, exist_ok=True)
        tell = partial(print_line, console)
        train_target(self.output, SmolRecipe(seed=self.seed), tell)
        distil_drafts(self.output, DraftsRecipe.of(self.drafts), tell)
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
        from specllava.smol.evaluate import compare_fluency, evaluate_truth

        results = {
            name: evaluate_truth(pair, self.scenes, self.decoding, blind).rates()
            for name, blind in (("seeing", False), ("blind", True))
        }
        if self.plain is not None:
            results["perplexity"] = compare_fluency(pair, self.plain)
        console.print_json(data=results)
        write_json(self.json, results)
