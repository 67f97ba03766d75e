"""The command ``python -m specllava bench``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console

from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    Typed,
    check_outputs,
    load_pair,
    print_line,
    report_unused_draft,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.files import SCENES, Split, scene_images
from specllava.metrics import pool_totals
from specllava.models.presets import Tree
from specllava.trace import TARGET_ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specllava.bench.dialogues import BenchDialogue
    from specllava.bench.measure import Measured, Runner
    from specllava.pair import Pair


@dataclass(frozen=True)
class Bench:
    """Time every lane on the same prompts, compare their tokens, and print what they were worth."""

    prompts: int = 40
    """How many rows of --data, or toy scenes. A dialogue is one."""

    data: Path | None = None
    """Ask the questions of this file in place of toy scenes: LLaVA's conversations, MMSpec's rows, or rows of {"image",
    "prompt", "category"}, as .json or .jsonl."""

    images: Path | None = None
    """Directory that the rows' image paths begin in; without it images beside the file, else the file's own."""

    turns: int = 3
    """Questions of one dialogue that are asked at most."""

    categories: tuple[str, ...] = ()
    """Only questions of these; toy scenes have describe, count, story and dialogue."""

    split: Split = "held-out"
    """Toy scenes with known combinations only, or each with one that training never named."""

    rounds: int = 3
    """Times that every lane answers every prompt."""

    order_seed: int = 0
    """Of the order in which lanes take turns."""

    lanes: tuple[str, ...] = ()
    """Only these beside target-only, such as: chain entropy. All without it."""

    json: Path | None = None
    """Write the report to this file."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)
    typed: Typed = frozenset()
    program: ClassVar[str] = "specllava"
    alone: ClassVar[tuple[str, ...]] = (TARGET_ONLY,)

    def run(self, console: Console) -> None:
        for name, value in (("prompts", self.prompts), ("rounds", self.rounds), ("turns", self.turns)):
            if value < 1:
                raise ValueError(f"--{name} is {value}: at least 1 is needed")
        check_outputs(json=self.json)
        dialogues = self._file_dialogues()
        pair = load_pair(self.pair)
        from specllava.bench.measure import Plan, measure

        command = shlex.join(["python", "-m", self.program, *sys.argv[1:]])
        plan = Plan(self._source(), self.rounds, self.order_seed, command=command, alone=self.alone)
        asked, config = self._chosen(dialogues), self.config(pair)
        self._report(console, measure(pair, asked, self.runners(pair), config, plan))

    def config(self, pair: Pair) -> DecodingConfig:
        """Return options of decoding with the device's number of nodes, where the command line says nothing else."""
        if pair.nodes is None or "nodes" in self.typed:
            return self.decoding
        return replace(self.decoding, nodes=pair.nodes)

    @property
    def tree(self) -> Tree:
        """Options with which others measured the preset's draft, where the command line says nothing else."""
        return {name: value for name, value in self.pair.tree.items() if name == "rule" or name not in self.typed}

    def runners(self, pair: Pair) -> dict[str, Runner]:
        """Return a runner for each lane."""
        from specllava.bench.measure import runners_of

        return runners_of(pair, self.config(pair), self.lanes, self.tree)

    def _source(self) -> str:
        return f"{self.split} toy scenes" if self.data is None else self.data.name

    def _file_dialogues(self) -> Sequence[BenchDialogue] | None:
        """Read the file of --data, if there is one, before a model is loaded."""
        if self.data is None and self.images is not None:
            raise ValueError("--images belongs to --data")
        if self.data is None and self.prompts > (most := len(scene_images(self.split))):
            raise ValueError(f"--prompts is {self.prompts}: {most} {self.split} toy scenes ship; --data takes more")
        if self.data is None:
            return None
        from specllava.bench.dialogues import data_dialogues

        return data_dialogues(self.data, self.images, self.prompts, self.turns)

    def _chosen(self, dialogues: Sequence[BenchDialogue] | None) -> Sequence[BenchDialogue]:
        """Choose by category among the dialogues of --data, or those about the scenes that ship."""
        if dialogues is None:
            from specllava.bench.dialogues import data_dialogues

            dialogues = data_dialogues(SCENES, None, self.prompts, self.turns, self.split)
        known = tuple(dict.fromkeys(dialogue.category for dialogue in dialogues))
        if unknown := [category for category in self.categories if category not in known]:
            raise ValueError(f"no question is of the category {unknown[0]}: there are {', '.join(known)}")
        return [one for one in dialogues if not self.categories or one.category in self.categories]

    def _report(self, console: Console, measured: Measured) -> None:
        """Print the tables, and write the file of --json."""
        from specllava.bench.report import category_results, fastest_alone, notes_of, report_of, results_of, tables_of

        results, categories = results_of(measured), category_results(measured)
        count, setting = len(measured.prompts), measured.setting
        ran = [setting.device, setting.dtype, *([] if setting.passes is None else [setting.passes])]
        title = ", ".join((f"{count} prompts", f"{measured.rounds} rounds", *ran))
        for table in tables_of(title, results, categories):
            console.print(table)
        for line in notes_of(measured, fastest_alone(measured)):
            print_line(console, line)
        guessed = pool_totals(lane.totals for lane in results.values() if lane.totals.draft_passes)
        report_unused_draft(setting.draft, "model", guessed)
        write_json(self.json, report_of(measured, results, categories))
