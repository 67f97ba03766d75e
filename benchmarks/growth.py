"""How the cost of a pass grows with tokens, context, vocabulary and model size, and that of a step with depth.

    python -m benchmarks.growth --json benchmarks/results/growth.json

Models are a Llama of random weights, shaped by --hidden, --layers and --vocabulary, and variations of it in one
measure at a time. Passes are those of this project's engine, in rounds over all variations, so that whatever
else the machine does falls on all. Steps are of the toy pair.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.shared.command import markdown, run_command, show
from benchmarks.shared.questions import held_out_questions
from specllava.bench.lanes import run_timed
from specllava.bench.results import totals_of
from specllava.bench.timed_run import TimedRun
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.lane import Lane
from specllava.models.checkpoints.language_model import parse_device
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.timing import now

TOKENS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 500, 1000, 2000, 4000)
VOCABULARIES = (2_000, 8_000, 32_000, 128_000)
LAYERS = (2, 4, 8, 16)
HIDDEN = (128, 256, 512, 1024)
DEPTHS = (1, 2, 4, 8, 16)
TREE = 16  # tokens of the wide pass


@dataclass(frozen=True, slots=True)
class Shape:
    """A pass: of which model, over how many tokens, after how many columns."""

    hidden: int
    layers: int
    vocabulary: int
    tokens: int = 1
    context: int = 128

    def model(self) -> LlamaForCausalLM:
        """Make the model, with random weights."""
        heads = max(1, self.hidden // 64)
        sizes = {"hidden_size": self.hidden, "intermediate_size": 4 * self.hidden, "vocab_size": self.vocabulary}
        config = LlamaConfig(
            **sizes, num_hidden_layers=self.layers, num_attention_heads=heads, num_key_value_heads=heads,
            max_position_embeddings=2 * max(CONTEXTS),
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()


def variations(base: Shape) -> dict[str, list[Shape]]:
    """Return the shapes to time: in each group one measure differs."""
    pairs = [(tokens, context) for context in CONTEXTS for tokens in (1, TREE)]
    return {
        "tokens": [replace(base, tokens=tokens) for tokens in TOKENS],
        "context": [replace(base, tokens=tokens, context=context) for tokens, context in pairs],
        "vocabulary": [replace(base, vocabulary=size) for size in VOCABULARIES],
        "layers": [replace(base, layers=layers) for layers in LAYERS],
        "hidden": [replace(base, hidden=hidden) for hidden in HIDDEN],
    }


def time_pass(run_pass: Callable[[], object], device: torch.device) -> float:
    """Run a pass and return its seconds."""
    started = now(device)
    run_pass()
    return now(device) - started


def time_attention(run_pass: Callable[[], object], device: torch.device) -> float:
    """Run a pass and return the seconds of attention in it, all layers."""
    attend, seconds = F.scaled_dot_product_attention, list[float]()

    def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
        started = now(device)
        result = attend(*args, **kwargs)
        seconds.append(now(device) - started)
        return result

    with patch.object(F, "scaled_dot_product_attention", timed):
        run_pass()
    return sum(seconds)


@torch.inference_mode()
def pass_times(
    shapes: list[Shape], rounds: int, device: torch.device, take: Callable[[Callable[[], object], torch.device], float]
) -> dict[Shape, float]:
    """Return the median seconds of each pass; passes of one model take turns with those of all others.

    Args:
        take: runs a pass and returns its seconds.
    """
    models: dict[tuple[int, int, int], LlamaForCausalLM] = {}
    engines: dict[Shape, Engine] = {}
    taken: defaultdict[Shape, list[float]] = defaultdict(list)
    for shape in shapes:
        key = shape.hidden, shape.layers, shape.vocabulary
        if key not in models:
            models[key] = shape.model().to(device)
        engines[shape] = Engine(models[key], shape.context + shape.tokens)
        engines[shape].forward(PassInput([1] * shape.context, last=1))
    for _ in tqdm(range(1 + rounds), "rounds of passes", disable=None):
        for shape, engine in engines.items():
            for _ in range(2):  # the first finds the processor's caches as another model left them
                seconds = take(partial(_choices, engine, shape.tokens), device)
                engine.keep(shape.context, [])
            taken[shape].append(seconds)
    return {shape: statistics.median(times[1:]) for shape, times in taken.items()}


def _choices(engine: Engine, tokens: int) -> object:
    return engine.forward(PassInput([1] * tokens)).logits.argmax(-1).tolist()


def step_times(pair: Pair, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of a mean step of chains, by depth, with its levels and the target's tokens."""
    prompts = [pair.prompt(asked.image, asked.text) for asked in held_out_questions("toy", 2)]
    config = DecodingConfig(max_new_tokens=48, min_log_prob=-50.0, rule="chain")
    found: defaultdict[int, list[TimedRun]] = defaultdict(list)
    for number in tqdm(range(1 + rounds), "rounds of answers", disable=None):
        for prompt, depth in product(prompts, DEPTHS):
            run = run_timed(pair, Lane("chain", replace(config, depth=depth, nodes=depth), prompt))
            if number:
                found[depth].append(run)
    rows = {}
    for depth, runs in found.items():
        totals = totals_of(runs)
        steps = totals.target_passes
        rows[str(depth)] = {
            "ms_cycle": 1e3 * totals.decode_seconds / steps,
            "levels": totals.draft_passes / steps,
            "tokens": 1 + totals.drafted / steps,
        }
    return rows


def tables(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of a report, as Markdown."""
    for group, rows in report["passes"].items():
        wide = ["tokens"] if group == "context" else []
        heads = [group, *wide, "ms", "× the first", *_attention(group, "attention, ms")]
        cells = []
        for row in rows:
            first = next(one["ms"] for one in rows if group == "tokens" or one["tokens"] == row["tokens"])
            told = [f"{row['ms']:.2f}", f"{row['ms'] / first:.2f}"]
            wide = [str(row["tokens"])] if group == "context" else []
            cells.append([f"{row[group]:,}", *wide, *told, *_attention(group, f"{row['attention_ms'] or 0:.2f}")])
        yield markdown(heads, cells)
    steps = [
        (depth, *(f"{row[name]:.1f}" for name in ("levels", "tokens")), f"{row['ms_cycle']:.2f}")
        for depth, row in report["steps"].items()
    ]
    yield markdown(("chain of", "levels", "tokens", "ms"), steps)


def _attention(group: str, cell: str) -> list[str]:
    """Return a cell of the column that contexts alone have."""
    return [cell] if group == "context" else []


def main(
    hidden: int = 512, layers: int = 8, vocabulary: int = 8_000, rounds: int = 10, device: str = "auto",
    json: Path | None = None,
) -> None:  # fmt: skip
    """Measure, print tables, and write the report.

    Args:
        hidden, layers, vocabulary: of the model that is varied.
        rounds: over all passes, and over all answers.
        device: cpu, cuda or cuda:N; auto takes the GPU if there is one.
        json: write the report to this file.
    """
    place = parse_device(device)
    base = Shape(hidden, layers, vocabulary)
    groups = variations(base)
    shapes = list(dict.fromkeys(shape for group in groups.values() for shape in group))
    times = pass_times(shapes, rounds, place, time_pass)
    attention = pass_times(groups["context"], rounds, place, time_attention)
    report: dict[str, Any] = {
        "passes": {
            group: [
                {
                    "hidden": shape.hidden, "layers": shape.layers, "vocabulary": shape.vocabulary,
                    "tokens": shape.tokens, "context": shape.context, "ms": 1e3 * times[shape],
                    "attention_ms": 1e3 * attention[shape] if group == "context" else None,
                }
                for shape in shapes
            ]
            for group, shapes in groups.items()
        },
        "steps": step_times(Pair.from_preset("toy"), max(1, rounds // 4)),
        "setting": {"device": str(place), "threads": torch.get_num_threads(), "torch": torch.__version__},
    }  # fmt: skip
    show("\n\n".join(tables(report)))
    write_json(json, report)


if __name__ == "__main__":
    run_command(main)
