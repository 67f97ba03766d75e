"""What one forward pass costs by the number of tokens in it, and whether a row has the bits that it has alone.

    python -m benchmarks.passes --json benchmarks/results/passes.json

Weights are stored row by row, column by column, and packed as well. Timings alternate between these, so that whatever
else the machine does falls on all of them.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.shared.command import run_command, show_table
from specllava.cli.options import check_outputs, write_json
from specllava.engine.cpu import can_pack
from specllava.engine.decoders import Batch, LanguageModel
from specllava.engine.engine import Engine
from specllava.models.language_model import now
from specllava.pair import Pair

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
TOGETHER = (2, 3, 4, 8, 16, 21, 32, 64)  # rows of a pass whose first one is compared
CONTEXT = 192  # tokens before the measured ones
WARM_UP = 3  # passes of each kind, which may be captured


def take_engine(pair: Pair, part: str, slots: int) -> Engine:
    """Return an engine of the target, or of the draft, with as many slots at least."""
    pool = pair.engines.target if part == "target" else pair.engines.draft
    assert pool is not None
    engine = pool.take(slots, wide=part == "target")
    if isinstance(engine.decoder, LanguageModel):
        engine.decoder.begin()
    return engine


def run_pass(engine: Engine, tokens: int) -> None:
    """Run a pass over tokens, and read the likeliest token after each."""
    states = None if isinstance(engine.decoder, LanguageModel) else engine.decoder.static_states(tokens)[False]
    engine.forward(Batch([0] * tokens, states=states)).logits.argmax(-1).tolist()


@torch.inference_mode()
def pass_seconds(
    engines: Sequence[Engine], ladder: Sequence[int], repeats: int
) -> list[dict[int, list[float]]]:
    """Measure seconds of every pass of each engine, by its number of tokens, after ``CONTEXT`` tokens.

    Engines and numbers of tokens take turns, so that whatever else the machine does falls on all of them.
    """
    for engine in engines:
        run_pass(engine, CONTEXT)
    seconds: list[dict[int, list[float]]] = [{rows: [] for rows in ladder} for _ in engines]
    for repeat in range(WARM_UP + repeats):
        for rows in ladder:
            for engine, taken in zip(engines, seconds, strict=True):
                started = now(engine.decoder.device)
                run_pass(engine, rows)
                if repeat >= WARM_UP:
                    taken[rows].append(now(engine.decoder.device) - started)
                engine.commit(CONTEXT, [])
    return seconds


def layouts(pair: Pair) -> dict[str, Pair]:
    """Return the pair with its weights stored row by row, column by column, and packed where this processor can."""
    rows = replace(pair, target=copy.deepcopy(pair.target), packed=False)
    for module in rows.target.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.contiguous()
    found = {"rows": rows, "columns": replace(pair, packed=False)}
    return found | ({"packed": replace(pair, packed=True)} if can_pack(pair.target.dtype) else {})


@torch.inference_mode()
def differences(pair: Pair) -> dict[int, float]:
    """Return by how much a token's logits differ alone and as the first of several rows, which see the text alone."""
    engine, found = take_engine(pair, "target", CONTEXT + max(TOGETHER)), dict[int, float]()
    run_pass(engine, CONTEXT)
    alone = engine.forward(Batch([1])).logits[0].clone()
    for rows in TOGETHER:
        engine.commit(CONTEXT, [])
        visible = np.concatenate([np.ones((rows, CONTEXT), np.bool_), np.eye(rows, dtype=np.bool_)], axis=1)
        among = engine.forward(Batch(range(1, 1 + rows), visible, [CONTEXT] * rows)).logits[0]
        found[rows] = 0.0 if torch.equal(among, alone) else float((among - alone).abs().max())
    return found


def main(repeats: int = 40, json: Path | None = None, preset: str = "toy") -> None:
    """Time passes of the target, and compare their bits in float32 and bfloat16.

    Args:
        repeats: passes per number of tokens.
        json: write medians and differences to this file.
        preset: which pair.
    """
    check_outputs(json=json)
    pair = Pair.from_preset(preset)
    kinds = layouts(pair)
    engines = [take_engine(each, "target", CONTEXT + max(ROWS)) for each in kinds.values()]
    taken = pass_seconds(engines, ROWS, repeats)
    found = {rows: [round(1e3 * statistics.median(each[rows]), 3) for each in taken] for rows in ROWS}
    lines = [(str(count), *(f"{value:.2f}" for value in medians)) for count, medians in found.items()]
    show_table(("tokens", *(f"{name}, ms" for name in kinds)), lines, f"median of {repeats} passes")
    bits = {
        f"{dtype}, {name}": differences(each)
        for dtype in ("float32", "bfloat16")
        for name, each in layouts(Pair.from_preset(preset, dtype=dtype)).items()
    }
    equal = [(name, *("=" if one == 0.0 else f"{one:.1e}" for one in each.values())) for name, each in bits.items()]
    show_table(("weights", *(f"{rows} rows" for rows in TOGETHER)), equal, "a row's logits alone and among others")
    write_json(json, {"milliseconds": found, "differences": bits, "setting": asdict(pair.info), "repeats": repeats})


if __name__ == "__main__":
    run_command(main)
