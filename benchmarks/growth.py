"""How the cost of a pass grows with tokens, context, vocabulary and model size, and that of a step with depth.

    python -m benchmarks.growth --json benchmarks/results/growth.json

Models are a Llama of random weights, of the shape that --hidden, --layers and --vocabulary name, and variations of it
in one measure at a time. Passes are those of this project's engine, in rounds over all variations, so that whatever
else the machine does falls on all. Steps are of the toy pair, behind a short prompt and a long one.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.console import Console
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.shared.command import markdown, run_command
from specllava.bench.bare_steps import BareSteps
from specllava.bench.lanes import run_timed
from specllava.bench.toy_dialogues import toy_prompts
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.lane import Lane
from specllava.models.checkpoints.device import parse_device
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt
from specllava.runtime.timing import now

TOKENS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 500, 1000, 2000, 4000)
VOCABULARIES = (2_000, 8_000, 32_000, 128_000)
LAYERS = (2, 4, 8, 16)
HIDDEN = (128, 256, 512, 1024)
DEPTHS = (1, 2, 4, 8, 16)
TREE = 16  # tokens of the wide pass
LONG = 2000  # tokens of the long prompt


@dataclass(frozen=True, slots=True)
class Shape:
    """A pass: of which model, over how many tokens, behind how many columns."""

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


class Take:
    """Runs passes and returns the seconds of each."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, run_pass: Callable[[], object]) -> float:
        started = now(self.device)
        run_pass()
        return now(self.device) - started


class TakeAttention(Take):
    """Runs passes and returns the seconds of the attention within each, all layers."""

    def __call__(self, run_pass: Callable[[], object]) -> float:
        attend, seconds = F.scaled_dot_product_attention, 0.0

        def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal seconds
            started = now(self.device)
            result = attend(*args, **kwargs)
            seconds += now(self.device) - started
            return result

        with patch.object(F, "scaled_dot_product_attention", timed):
            run_pass()
        return seconds


@torch.inference_mode()
def pass_times(shapes: list[Shape], rounds: int, take: Take) -> dict[Shape, float]:
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
            models[key] = shape.model().to(take.device)
        engines[shape] = Engine(models[key], shape.context + shape.tokens)
        engines[shape].forward(PassInput([1] * shape.context, last=1))
    for _ in tqdm(range(1 + rounds), "rounds of passes", disable=None):
        for shape, engine in engines.items():
            for _ in range(2):  # the first finds the processor's caches as another model left them
                seconds = take(partial(_choices, engine, shape.tokens))
                engine.keep(shape.context, [])
            taken[shape].append(seconds)
    return {shape: statistics.median(times[1:]) for shape, times in taken.items()}


def _choices(engine: Engine, tokens: int) -> object:
    return engine.forward(PassInput([1] * tokens)).logits.argmax(-1).tolist()


def long_prompt(pair: Pair, prompt: Prompt, length: int) -> Prompt:
    """Return a prompt with its words repeated behind it up to ``length`` tokens."""
    ids = prompt.input_ids[0].tolist()
    marker = pair.target.config.image_token_id
    words = [token for token in ids if token != marker]
    repeated = (words * math.ceil(length / len(words)))[: length - len(ids)]
    more = torch.tensor([ids + repeated], device=prompt.input_ids.device)
    return replace(prompt, input_ids=more)


def step_times(pair: Pair, prompts: list[Prompt], lanes: Mapping[str, DecodingConfig], rounds: int) -> dict[str, Any]:
    """Return milliseconds of a mean step of each lane, those of its passes once more, bare, and what is above them."""
    bare = BareSteps(pair)
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
    for number in tqdm(range(1 + rounds), "rounds of answers", disable=None):
        for prompt in prompts:
            for name, config in lanes.items():
                run = run_timed(pair, Lane(name, config, prompt))
                levels, nodes = (
                    sum(len(step.draft_widths) for step in run.steps), sum(step.target_width for step in run.steps)
                )  # fmt: skip
                row = len(run.steps), run.decode_seconds, bare.seconds(run), levels, nodes
                if number:
                    sums[name] = [one + other for one, other in zip(sums[name], row, strict=True)]
    return {
        name: {
            "ms_cycle": 1e3 * cycle / steps, "ms_floor": 1e3 * floor / steps, "overhead": cycle / floor - 1,
            "levels": levels / steps, "tokens": nodes / steps,
        }
        for name, (steps, cycle, floor, levels, nodes) in sums.items()
    }  # fmt: skip


def steps(pair: Pair, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the steps of chains by depth, and of three lanes behind a short prompt and a long one."""
    prompts = list(toy_prompts(pair, "held-out", 2))
    base = DecodingConfig(max_new_tokens=48, min_log_prob=-50.0)
    chains = {str(depth): replace(base, rule="chain", depth=depth, nodes=depth) for depth in DEPTHS}
    usual = DecodingConfig(max_new_tokens=48)
    lanes = {
        "target-only": replace(usual, drafter="none"), "entropy": usual, "chain": replace(usual, rule="chain"),
    }  # fmt: skip
    found = {"depth": step_times(pair, prompts, chains, rounds)}
    found["short"] = step_times(pair, prompts, lanes, rounds)
    found["long"] = step_times(pair, [long_prompt(pair, prompt, LONG) for prompt in prompts], lanes, rounds)
    return found


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
    for group, rows in report["steps"].items():
        titles = ("chain of" if group == "depth" else f"{group} prompt", "levels", "tokens", "ms", "floor", "overhead")
        yield markdown(
            titles,
            [
                [name, f"{row['levels']:.1f}", f"{row['tokens']:.1f}", f"{row['ms_cycle']:.2f}",
                 f"{row['ms_floor']:.2f}", f"{100 * row['overhead']:.0f} %"]
                for name, row in rows.items()
            ],
        )  # fmt: skip


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
    times = pass_times(list(dict.fromkeys(shape for group in groups.values() for shape in group)), rounds, Take(place))
    attention = pass_times(groups["context"], rounds, TakeAttention(place))
    pair = Pair.from_preset("toy")
    pair.target.config.get_text_config().max_position_embeddings = 2 * LONG  # what it never learnt costs the same
    pair = replace(pair, context_limit=2 * LONG)
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
        "steps": steps(pair, max(1, rounds // 4)),
        "setting": {"device": str(place), "threads": torch.get_num_threads(), "torch": torch.__version__},
    }  # fmt: skip
    console = Console(width=120)
    for table in tables(report):
        console.print(table, markup=False, highlight=False)
        console.print()
    write_json(json, report)


if __name__ == "__main__":
    run_command(main)
