"""The command line: ``python -m specllava COMMAND``. Help and defaults come from the dataclasses."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro
from pydantic import ValidationError
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from specllava.cli.distill import Distill
from specllava.cli.draft import Import, Init
from specllava.cli.options import Options, Place, Running, check_outputs, drafting, load, write_json
from specllava.cli.presets import Presets
from specllava.cli.toyworld import Evaluate, ExportData, Record, Render, Train
from specllava.cli.trace import Export, View
from specllava.config import DecodingConfig, one_line
from specllava.whole_file import write_whole

if TYPE_CHECKING:
    from specllava.bench import LaneResult
    from specllava.pair import Pair

DEBUG: Final = "SPECLLAVA_DEBUG"  # environment variable: set, an error's stack trace is printed too


@dataclass(frozen=True)
class Generate:
    """Answer a question about a picture, speculatively."""

    image: Path
    """Picture file."""

    prompt: str
    """The question."""

    json: Path | None = None
    """Write token ids and text to this file."""

    trace: Path | None = None
    """Write the whole trace to this file."""

    running: Place = field(default_factory=Running)
    decoding: Options = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        from specllava.models.images import read_size

        check_outputs(json=self.json, trace=self.trace)
        read_size(self.image)  # a picture that is missing is told before a model is loaded
        pair = load(self.running)
        decoding = drafting(pair, self.decoding, instead="none")
        trace = pair.generate(self.image, self.prompt, decoding)
        console.print(trace.text, markup=False, highlight=False)
        name = "target_only" if decoding.drafter == "none" else "speculative"
        write_json(self.json, {name: {"token_ids": list(trace.token_ids), "text": trace.text}})
        if self.trace:
            write_whole(self.trace, trace.to_json())


@dataclass(frozen=True)
class Compare:
    """Answer the same question with and without speculation, and say whether the answers are the same."""

    image: Path
    """Picture file."""

    prompt: str
    """The question."""

    json: Path | None = None
    """Write token ids and text of both lanes to this file."""

    trace: Path | None = None
    """Write both lanes' traces to this file: what trace view and the page open."""

    running: Place = field(default_factory=Running)
    decoding: Options = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        from specllava.metrics import compare, speedup, summarise
        from specllava.models.images import read_size
        from specllava.trace import race_json

        check_outputs(json=self.json, trace=self.trace)
        read_size(self.image)  # a picture that is missing is told before a model is loaded
        pair = load(self.running)
        traces = pair.compare(self.image, self.prompt, drafting(pair, self.decoding, instead="prompt-lookup"))
        plain, fast = traces["target-only"], traces["speculative"]
        verdict, reference, candidate = compare(plain, fast), summarise([plain]), summarise([fast])
        for title, trace in (("target only", plain), ("speculative", fast)):
            console.print(f"[bold]{title}[/]")
            console.print(trace.text + "\n", markup=False, highlight=False)
        if not self.decoding.exact:
            console.print("guesses drawn by chance: both answers have the target's distribution")
        elif verdict.identical:
            console.print(f"identical: {verdict.tokens} of {verdict.tokens} tokens")
        else:
            where = "near-tie" if verdict.near_tie else "DIFFERENT"
            margin = "one answer goes on" if verdict.margin is None else f"margin of the target {verdict.margin:.2g}"
            console.print(f"{where} at token {verdict.position}: {margin}")
        console.print(
            f"tau {candidate.tau:.2f} tokens per target pass, {candidate.target_passes} passes"
            f" instead of {reference.target_passes}"
        )
        console.print(
            f"{candidate.tokens_per_second:.0f} instead of {reference.tokens_per_second:.0f} tokens/s:"
            f" {speedup(reference, candidate):.2f} times as fast"
        )
        lanes = {"target_only": plain, "speculative": fast}
        write_json(
            self.json,
            {name: {"token_ids": list(t.token_ids), "text": t.text} for name, t in lanes.items()}
            | {"identical": verdict.identical},
        )
        if self.trace:
            beside = self.image.resolve().parent == self.trace.resolve().parent
            write_whole(self.trace, race_json(plain, fast, self.image.name if beside else None))


@dataclass(frozen=True)
class Bench:
    """Time every lane on held-out toy prompts, compare their tokens, and print one table."""

    prompts: int = 100
    """How many prompts."""

    split: Literal["train", "held-out"] = "held-out"
    """Scenes with known combinations only, or each with one that training never named."""

    identity: bool = False
    """About tokens, not time: without transformers, and every margin of the target where a lane differs is printed."""

    lanes: tuple[str, ...] = ()
    """Only these beside target-only, such as: chain entropy. All without it."""

    json: Path | None = None
    """Write the table to this file."""

    running: Place = field(default_factory=Running)
    decoding: Options = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        if self.prompts < 1:
            raise ValueError(f"--prompts is {self.prompts}: at least 1 is needed")
        check_outputs(json=self.json)
        pair = load(self.running)
        from specllava.bench import BenchStopped, run_bench

        try:
            results = run_bench(pair, self.prompts, self.decoding, self.split, not self.identity, self.lanes)
        except BenchStopped as stop:
            self._tell(console, pair, stop.results)
            raise
        self._tell(console, pair, results)

    def _tell(self, console: Console, pair: Pair, results: dict[str, LaneResult]) -> None:
        """Print the table, and write it."""
        done = next(iter(results.values())).summary.runs
        prompts = f"{done}" if done == self.prompts else f"{done} of {self.prompts}"
        title = f"{prompts} prompts, {pair.info.device}, {pair.info.dtype}"
        table = Table(box=SIMPLE, collapse_padding=True, pad_edge=False, title=title)
        for column in ("lane", "τ", "ms/token", "speed-up", "efficiency", "differ", "ties", "prefill ms"):
            table.add_column(column, no_wrap=True)  # a heading that is cut off tells nothing
        for name, lane in results.items():
            row = lane.as_json()
            numbers = (row["tau"], row["ms_per_token"], row["speedup"], row["efficiency"])
            table.add_row(
                name, *(f"{n:.2f}" for n in numbers), str(lane.mismatches), str(lane.ties), f"{row['ms_prefill']:.1f}"
            )
        console.print(table)
        for name, lane in results.items() if self.identity else ():
            for margin in lane.margins:
                console.print(f"{name} differs: {'one answer goes on' if margin is None else f'margin {margin:.2g}'}")
        lanes = {name: lane.as_json() for name, lane in results.items()}
        if self.identity:  # need not run alone on the machine, so what it took says nothing
            lanes = {name: {key: row[key] for key in ABOUT_TOKENS} for name, row in lanes.items()}
        write_json(self.json, {"lanes": lanes, "setting": asdict(pair.info), "config": asdict(self.decoding)})


ABOUT_TOKENS = ("runs", "tokens", "mismatches", "ties", "margins")

Command = (
    Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Distill, tyro.conf.subcommand("distill")]
    | Annotated[Presets, tyro.conf.subcommand("presets")]
    | Annotated[
        Annotated[Init, tyro.conf.subcommand("init")] | Annotated[Import, tyro.conf.subcommand("import")],
        tyro.conf.subcommand("draft", description="Drafts for a target: make one, or take one over."),
    ]
    | Annotated[
        Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Render, tyro.conf.subcommand("render")]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Record, tyro.conf.subcommand("record")]
        | Annotated[ExportData, tyro.conf.subcommand("export")],
        tyro.conf.subcommand("toyworld", description="The world of the toy pair."),
    ]
    | Annotated[
        Annotated[View, tyro.conf.subcommand("view")] | Annotated[Export, tyro.conf.subcommand("export")],
        tyro.conf.subcommand("trace", description="Saved races, with no model at hand."),
    ]
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 only on success, 130 after Ctrl-C, errors in one line on stderr."""
    try:
        command = _parse(arguments)
        run: Callable[[Console], None] = command.run
        run(Console())
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except Exception as error:  # noqa: BLE001 - whatever went wrong, nobody is shown a stack trace unasked
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return _fail(_told(error))
    return 0


def _told(error: Exception) -> str:
    """An error as one line: by its message alone where the program foresaw it, else with the way to more."""
    if isinstance(error, ValidationError):
        return one_line(error)
    message = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | FloatingPointError) and message:
        return message
    return f"{type(error).__name__}: {message[:300]} ({DEBUG}=1 shows where)"


def _parse(arguments: list[str] | None) -> Any:
    """The command that the arguments name; usage errors leave the program with one line instead of a box of them."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(Command, prog="specllava", args=arguments, description=__doc__)
    except SystemExit as stop:
        if stop.code:
            text = " ".join(re.sub(r"[─│╭╮╰╯]", " ", captured.getvalue()).split())
            text = re.sub(r"\[type=\w+, input_value=(.*?), input_type=\w+\].*", r"(given: \1)", text)
            text = re.sub(r".*validation errors? for \w+ ", "", text).split(" For full helptext")[0]
            _fail(f"{text}: see --help")
        raise


def _fail(message: str, code: int = 1) -> int:
    print(f"specllava: {message}", file=sys.stderr)
    return code
