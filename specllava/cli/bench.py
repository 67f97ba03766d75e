"""The command ``python -m specllava bench``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from specllava.cli.options import DecodingOptions, PairOptions, check_outputs, load_pair, write_json
from specllava.config import DecodingConfig

if TYPE_CHECKING:
    from specllava.bench import LaneResult
    from specllava.pair import Pair

TOKEN_FIELDS: Final = ("runs", "tokens", "mismatches", "ties", "margins")  # what --identity reports


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

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        if self.prompts < 1:
            raise ValueError(f"--prompts is {self.prompts}: at least 1 is needed")
        check_outputs(json=self.json)
        pair = load_pair(self.pair)
        from specllava.bench import BenchStopped, run_bench

        try:
            results = run_bench(pair, self.prompts, self.decoding, self.split, not self.identity, self.lanes)
        except BenchStopped as stop:
            self._print_and_write(console, pair, stop.results)
            raise
        self._print_and_write(console, pair, results)

    def _print_and_write(self, console: Console, pair: Pair, results: dict[str, LaneResult]) -> None:
        """Print the table, and write it to the file of --json."""
        done = next(iter(results.values())).summary.runs
        prompts = f"{done}" if done == self.prompts else f"{done} of {self.prompts}"
        title = f"{prompts} prompts, {pair.info.device}, {pair.info.dtype}"
        table = Table(box=SIMPLE, padding=0, title=title)
        for column in (
            "lane",
            "τ",
            "ms/token",
            "speed-up",
            "efficiency",
            "differ",
            "ties",
            "prefill\nms",
            "wall\nms/token",
        ):
            table.add_column(column, no_wrap=True)  # a heading that is cut off cannot be read
        for name, lane in results.items():
            row = lane.as_json()
            ratios = (f"{row[key]:.2f}" for key in ("tau", "ms_per_token", "speedup", "efficiency"))
            times = (f"{row['ms_prefill']:.1f}", f"{row['ms_per_token_wall']:.2f}")
            table.add_row(name, *ratios, str(lane.mismatches), str(lane.ties), *times)
        console.print(table)
        for name, lane in results.items() if self.identity else ():
            for margin in lane.margins:
                console.print(f"{name} differs: {'one answer goes on' if margin is None else f'margin {margin:.2g}'}")
        lanes = {name: lane.as_json() for name, lane in results.items()}
        if self.identity:  # the machine may be busy with other work, so times mean nothing
            lanes = {name: {key: row[key] for key in TOKEN_FIELDS} for name, row in lanes.items()}
        write_json(self.json, {"lanes": lanes, "setting": asdict(pair.info), "config": asdict(self.decoding)})
