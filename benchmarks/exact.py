"""What exact passes cost, and what they save: answers that a draft changes in bfloat16, with and without them.

    OMP_NUM_THREADS=1 python -m benchmarks.exact --runs 3000 --processes 2 --json benchmarks/results/exact.json

Random pairs of ``benchmarks.identity``, and the toy pair on held-out prompts. Each answer is compared with the target
alone that runs the same way. The price is in tokens per pass: of a tree only the first branch is accepted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Literal

import torch
from tqdm.auto import tqdm

from benchmarks.identity import Case, Runner, cases
from benchmarks.shared.command import run_command, show_table
from specllava.bench import bench_lanes, prompts_of
from specllava.cli.options import check_outputs, write_json
from specllava.config import RULES, DecodingConfig
from specllava.distill.rows import data_dialogues
from specllava.files import SCENES
from specllava.models.options import DTypeName
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane
from specllava.trace import DecodeTrace

LONGEST: Final = 24  # tokens of an answer of the toy pair
BLOCK: Final = 100  # random runs that a process takes at a time
PLAIN: Final = DecodingConfig()  # no prompt depends on it
Precision = Literal["bfloat16", "float16", "float32"]
Rows = defaultdict[str, Counter[str]]  # by who guesses, what :func:`counted` counts


def counted(alone: Mapping[bool, DecodeTrace], drafted: Mapping[bool, DecodeTrace]) -> dict[str, int]:
    """Count an answer, decoded without and with exact passes, whether it differs, and its tokens and passes."""
    return {
        "answers": 1,
        "differ": int(alone[False].token_ids != drafted[False].token_ids),
        "differ_exact": int(alone[True].token_ids != drafted[True].token_ids),
        "tokens": len(drafted[True].token_ids) - 1,  # the first is the prompt's
        "passes": len(drafted[False].steps),
        "passes_exact": len(drafted[True].steps),
    }


class Decoder:
    """Decoder of pairs without and with exact passes; a target's own answers are decoded once."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._runner = Runner(dtype)
        self._pair, self._alone = cache(self._make_pair), cache(self._decode)
        self._prompt = cache(self._runner.prompt)

    def both(self, case: Case) -> tuple[dict[bool, DecodeTrace], dict[bool, DecodeTrace]]:
        """Return the answers to a case of the target alone and with its draft, by whether passes were exact."""
        alone = {exact: self._alone(case.alone, exact) for exact in (False, True)}
        return alone, {exact: self._decode(case, exact) for exact in (False, True)}

    def _decode(self, case: Case, exact: bool) -> DecodeTrace:
        pair = self._pair(case.target, case.format, exact)
        prompt = self._prompt(replace(case, config=PLAIN))
        return pair.run(Lane.of(case.config, prompt), record=False)

    def _make_pair(self, target: int, name: str, exact: bool) -> Pair:
        return replace(self._runner.pair(target, name), exact=exact)


@cache
def _decoder(dtype: torch.dtype) -> Decoder:
    """Return a process's decoder, which keeps its targets' own answers from block to block."""
    return Decoder(dtype)


def random_rows(block: tuple[int, int], dtype: torch.dtype, seed: int) -> Rows:
    """Run a block of random cases; return what was counted, by who guesses."""
    decoder, rows = _decoder(dtype), Rows(Counter)
    for case in islice(cases(block[1], seed), *block):
        name = case.config.rule if case.config.drafter == "model" else case.config.drafter
        rows[name].update(counted(*decoder.both(case)))
    return rows


def all_random_rows(runs: int, dtype: torch.dtype, seed: int, processes: int) -> Rows:
    """Run random cases in worker processes."""
    blocks = [(first, min(first + BLOCK, runs)) for first in range(0, runs, BLOCK)]
    count, rows = partial(random_rows, dtype=dtype, seed=seed), Rows(Counter)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for found in tqdm(pool.map(count, blocks), "random pairs", len(blocks), disable=None):
            for name, row in found.items():
                rows[name].update(row)
    return rows


def toy_rows(prompts: int, dtype: DTypeName) -> Rows:
    """Answer held-out prompts with the toy pair by every rule."""
    pair = Pair.from_preset("toy", device="cpu", dtype=dtype)
    pairs = {exact: replace(pair, exact=exact) for exact in (False, True)}
    config = DecodingConfig(max_new_tokens=LONGEST)
    lanes = {name: one for name, one in bench_lanes(config).items() if name in RULES}
    dialogues = data_dialogues(SCENES, None, prompts, 1, "held-out")
    asked = [prompt for one in dialogues for prompt in prompts_of(pair, one, config)]
    rows = Rows(Counter)
    for prompt in tqdm(asked, "toy pair", disable=None):
        alone = {way: one.run(Lane.of(replace(config, drafter="none"), prompt)) for way, one in pairs.items()}
        for name, lane in lanes.items():
            drafted = {way: one.run(Lane.of(lane, prompt), record=False) for way, one in pairs.items()}
            rows[name].update(counted(alone, drafted))
    return rows


def shown(rows: Rows) -> list[tuple[str, ...]]:
    """Return lines of a table: differing answers and tokens per pass, without and with exact passes."""
    return [
        (
            name, *(f"{row[each]:,}" for each in ("answers", "differ", "differ_exact")),
            *(f"{row['tokens'] / row[each]:.2f}" for each in ("passes", "passes_exact")),
        )
        for name, row in sorted(rows.items())
    ]  # fmt: skip


def main(
    runs: int = 3000,
    prompts: int = 20,
    seed: int = 0,
    dtype: Precision = "bfloat16",
    processes: int = 1,
    json: Path | None = None,
) -> None:
    """Count differing answers and passes, without and with exact passes.

    Args:
        runs: of random pairs.
        prompts: of the toy pair, each by every rule.
        seed: of random pairs and cases.
        dtype: precision.
        processes: that share the random runs.
        json: write the rows to this file.
    """
    check_outputs(json=json)
    setting = {"dtype": dtype, "prompts": prompts, "seed": seed, "runs": runs, "torch": torch.__version__}
    setting["threads"] = torch.get_num_threads()
    found = {"toy": toy_rows(prompts, dtype), "random": all_random_rows(runs, getattr(torch, dtype), seed, processes)}
    write_json(json, {kind: dict(sorted(rows.items())) for kind, rows in found.items()} | {"setting": setting})
    heads = ("guesses", "answers", "differ", "differ, exact", "tokens per pass", "exact")
    for kind, rows in found.items():
        show_table(heads, shown(rows), f"{kind} pairs, {dtype}: answers that differ from the target alone's")


if __name__ == "__main__":
    run_command(main)
