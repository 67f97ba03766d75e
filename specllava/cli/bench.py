"""The command ``python -m specllava bench``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from specllava.bench.regressions import OldReport, SlowerError, check_comparable, slower_lanes
from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    Typed,
    check_outputs,
    load_pair,
    print_line,
    write_json,
)
from specllava.core.config import DecodingConfig
from specllava.core.files import write_whole
from specllava.core.scenes import SCENES, Split, scene_images

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specllava.bench.dialogue import BenchDialogue
    from specllava.bench.measured import Measured
    from specllava.pair import Pair
    from specllava.runtime.prompt import Prompt

JUDGED: Final = 8  # first questions on which a draft is judged


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

    identity: bool = False
    """About tokens, not time: one round without transformers, and every margin of the target where a lane differs is
    printed."""

    lanes: tuple[str, ...] = ()
    """Only these beside target-only, such as: chain entropy. All without it."""

    json: Path | None = None
    """Write the report to this file."""

    raw: Path | None = None
    """Write every step to this file; python -m benchmarks.bench_table makes tables and a picture of it."""

    diagnose: bool = False
    """Also say why drafting is not faster here: what passes cost, how near the draft is, what would help."""

    against: Path | None = None
    """Name the lanes that are slower than this earlier report of --json says, beyond its interval; then the command
    fails."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)
    typed: Typed = frozenset()

    def run(self, console: Console) -> None:
        for name, value in (("prompts", self.prompts), ("rounds", self.rounds), ("turns", self.turns)):
            if value < 1:
                raise ValueError(f"--{name} is {value}: at least 1 is needed")
        check_outputs(json=self.json, raw=self.raw)
        for name, given in (("against", self.against), ("diagnose", self.diagnose)):
            if given and self.identity:
                raise ValueError(f"--{name} is about times, and --identity measures none: leave one of them out")
        old = None if self.against is None else OldReport.read(self.against)
        dialogues = self._file_dialogues()
        from specllava.bench.processes import Processes

        processes = Processes.launched()
        pair = load_pair(replace(self.pair, device=processes.device(self.pair.device)))
        from specllava.bench.lanes import runners_of
        from specllava.bench.rounds import BenchStopped, Plan, measure

        tree = {name: value for name, value in self.pair.tree.items() if name == "rule" or name not in self.typed}
        runners = runners_of(pair, self.decoding, self.lanes, not self.identity, tree)
        if old is not None:
            here = {"setting": asdict(pair.info), "config": asdict(self.decoding), "data": self._source()}
            check_comparable(old, here)
        command = shlex.join(["python", "-m", "specllava", *sys.argv[1:]])
        plan = Plan(self._source(), self.rounds, self.order_seed, command=command)
        if self.identity:
            plan = Plan(self._source(), 1, self.order_seed, within=None, floor=False, command=command)
        if self.diagnose and pair.draft is None:
            raise ValueError(f"--diagnose judges a draft, and the pair {pair.name} has none: name one with --draft")
        asked = self._chosen(dialogues)
        try:
            measured = processes.join(measure(pair, processes.share(asked), runners, self.decoding, plan))
        except BenchStopped as stop:
            if processes.count == 1:
                self._report(console, stop.measured)
            raise
        if measured is None:
            return
        report = self._report(console, measured, pair if self.diagnose else None, asked)
        if old is not None and (slower := slower_lanes(old, report)):
            raise SlowerError(f"slower than in {self.against} beyond its interval: {'; '.join(slower)}")

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
        from specllava.bench.data_dialogues import data_dialogues

        return data_dialogues(self.data, self.images, self.prompts, self.turns)

    def _chosen(self, dialogues: Sequence[BenchDialogue] | None) -> Sequence[BenchDialogue]:
        """Choose by category among the dialogues of --data, or those about the scenes that ship."""
        if dialogues is None:
            from specllava.bench.data_dialogues import data_dialogues

            dialogues = data_dialogues(SCENES, None, self.prompts, self.turns, self.split)
        known = tuple(dict.fromkeys(dialogue.category for dialogue in dialogues))
        if unknown := [category for category in self.categories if category not in known]:
            raise ValueError(f"no question is of the category {unknown[0]}: there are {', '.join(known)}")
        return [one for one in dialogues if not self.categories or one.category in self.categories]

    def _report(
        self, console: Console, measured: Measured, judged: Pair | None = None, asked: Sequence[BenchDialogue] = ()
    ) -> dict[str, Any]:
        """Print the tables, write the files of --json and --raw, and return the report.

        Args:
            judged: the pair, where a diagnosis is asked for.
        """
        from specllava.bench.report import category_results, report_of
        from specllava.bench.results import fastest_alone, results_of
        from specllava.bench.tables import notes_of, tables_of

        results, categories = results_of(measured), category_results(measured)
        count, setting = len(measured.prompts), measured.setting
        ran = [setting.device, setting.dtype, *([] if setting.passes is None else [setting.passes])]
        title = ", ".join((f"{count} prompts", f"{measured.rounds} rounds", *ran))
        for table in tables_of(title, results, categories):
            console.print(table)
        for line in notes_of(measured, fastest_alone(measured.runs)):
            print_line(console, line)
        for name, lane in results.items() if self.identity else ():
            for margin in lane.margins:
                console.print(f"{name} differs: {'one answer goes on' if margin is None else f'margin {margin:.2g}'}")
        report = report_of(measured, results, categories, self.identity)
        if judged is not None:
            from specllava.bench.diagnosis import diagnose
            from specllava.bench.draft_quality import draft_quality

            answers = first_answers(measured, judged, asked, self.decoding)
            report["diagnosis"] = (found := diagnose(measured, results, draft_quality(judged, answers))).as_json()
            for line in found.lines():
                print_line(console, line)
        write_json(self.json, report)
        if self.raw:
            write_whole(self.raw, measured.to_json())
        return report


def first_answers(
    measured: Measured, pair: Pair, dialogues: Sequence[BenchDialogue], config: DecodingConfig
) -> Iterator[tuple[Prompt, tuple[int, ...]]]:
    """Yield the first prompts of some dialogues with what the target alone answered."""
    from specllava.bench.dialogue import prompts_of
    from specllava.lane import TARGET_ONLY

    firsts: dict[int, int] = {}
    for number, turn in enumerate(measured.prompts):
        firsts.setdefault(turn.dialogue, number)
    for dialogue, number in list(firsts.items())[:JUDGED]:
        prompt = next(prompts_of(pair, dialogues[dialogue], config))
        yield prompt, measured.runs[TARGET_ONLY][number].token_ids
