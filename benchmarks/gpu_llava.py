"""What LLaVA-1.5-7B costs on this machine, and what a draft is worth here by how many tokens a pass brings.

    python -m benchmarks.gpu_llava --json benchmarks/results/gpu-llava.json   # one GPU with 20 GB, a few minutes
    python -m benchmarks.gpu_llava --size toy                                 # anywhere, seconds

Nothing is downloaded: the models have the published shapes and random weights, and the words are the toy tokenizer's.
Times do not depend on what the weights are, so these are the times of the real pair. How many tokens a pass brings
does depend on it, so the table has a column for each number. Everything runs through the project's own prompt, engine,
rules and loop.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.gpu.passes import pass_medians
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.random_pair import SizeName, build, device_for, size_of
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.core.growth.rules.topk import eagle2_tree
from specllava.core.trace import Prefill, StepTrace
from specllava.decoding import stream
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.timing import CONTEXT

TARGET_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
DRAFT_ROWS = (1, 2, 4, 8, 16)
TAUS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)  # what the literature reports for LLaVA-1.5 lies between 2 and 4
QUESTION = "Describe this image in detail."
PICTURE = Image.new("RGB", (640, 480), "teal")
STEPS, LONGEST = 16, 128  # steps that are timed, and an answer whose end does not cut their trees short
ALONE = "nobody drafts"
LANES = {
    ALONE: DecodingConfig(drafter="none", max_new_tokens=LONGEST),
    "chain": DecodingConfig(rule="chain", depth=5, min_log_prob=-50.0, max_new_tokens=LONGEST),
    "entropy, defaults": DecodingConfig(max_new_tokens=LONGEST),
    "sequoia": DecodingConfig(rule="sequoia", nodes=32, max_new_tokens=LONGEST),
    "top 10, EAGLE-2": DecodingConfig(**eagle2_tree(7, 10, 60), max_new_tokens=LONGEST),
}


@dataclass(frozen=True, slots=True)
class Cycle:
    """One step of a lane: medians of seconds, means of the tree.

    Args:
        guesses, levels: nodes of the tree below its root, and its depth.
        draft, verify, total: seconds of drafting, of the target's pass with the verdict, and of all.
        agrees: tokens from the start that are those of the lane without a draft.
        tokens: tokens that there were.
    """

    guesses: float
    levels: float
    draft: float
    verify: float
    total: float
    agrees: int
    tokens: int

    def break_even(self, alone: Cycle) -> float:
        """Tokens per pass from which on drafting is faster than not drafting."""
        return self.total / alone.total

    def speedup(self, alone: Cycle, tau: float) -> float:
        return tau / self.break_even(alone)


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything in seconds, medians.

    Args:
        prompt_tokens: in the cycles; passes are timed after :data:`CONTEXT` tokens.
        vision, target_prefill, draft_prefill: from pixels to features, and reading the prompt.
        target_pass, draft_pass: by the number of tokens in it.
        cycles: by lane.
    """

    prompt_tokens: int
    vision: float
    target_prefill: float
    draft_prefill: float
    target_pass: dict[int, float]
    draft_pass: dict[int, float]
    cycles: dict[str, Cycle]


def measure(pair: Pair, repeats: int) -> Measured:
    """Passes alone, then whole answers: lanes take turns, and their first round is left out."""
    passes = pass_medians(pair, {"target": TARGET_ROWS, "draft": DRAFT_ROWS}, repeats)
    steps: dict[str, list[StepTrace]] = {name: [] for name in LANES}
    prefills: dict[str, list[Prefill]] = {name: [] for name in LANES}
    said: dict[str, list[int]] = {}
    for number in range(1 + repeats):
        prompt = pair.prompt(PICTURE, QUESTION, LONGEST)
        for name, config in LANES.items():
            begun, *rest = islice(stream(pair.request(Lane(name, config, prompt))), 1 + STEPS)
            assert isinstance(begun, Prefill)
            taken = [step for step in rest if isinstance(step, StepTrace)]
            said[name] = [begun.first_token, *(token for step in taken for token in step.emitted)]
            if number:
                prefills[name].append(begun)
                steps[name] += taken
    lanes = [one for name, begun in prefills.items() if name != ALONE for one in begun]
    return Measured(
        prompt_tokens=lanes[0].prompt_tokens,
        vision=statistics.median(one.vision_seconds for one in lanes),
        target_prefill=statistics.median(one.target_seconds for one in lanes),
        draft_prefill=statistics.median(one.draft_seconds for one in lanes),
        target_pass=passes["target"],
        draft_pass=passes["draft"],
        cycles={name: _cycle(steps[name], said[name], said[ALONE]) for name in LANES},
    )


def _cycle(steps: list[StepTrace], said: list[int], alone: list[int]) -> Cycle:
    shared = min(len(said), len(alone))
    return Cycle(
        guesses=statistics.mean(step.tree.drafted for step in steps),
        levels=statistics.mean(max(step.tree.depths()) for step in steps),
        draft=statistics.median(step.seconds.draft for step in steps),
        verify=statistics.median(step.seconds.verify for step in steps),
        total=statistics.median(step.seconds.total for step in steps),
        agrees=next((n for n in range(shared) if said[n] != alone[n]), shared),
        tokens=shared,
    )


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes.

    Args:
        target, draft: their weights, the tower with the target's.
        column: of both caches, for one token.
        peak: most that was in use while measuring; only a GPU says.
    """

    target: int
    draft: int
    column: int
    peak: int | None

    def __str__(self) -> str:
        peak = "" if self.peak is None else f", at most {self.peak / 1e9:.2f} GB in use"
        caches = f"{self.column / 1e3:.0f} kB of cache per token"
        return f"weights {self.target / 1e9:.3f} and {self.draft / 1e9:.3f} GB, {caches}{peak}"


def memory(pair: Pair) -> Held:
    """What the pair holds."""
    assert pair.draft is not None
    models = (pair.target, pair.draft)
    target, draft = (sum(w.numel() * w.element_size() for w in model.parameters()) for model in models)
    texts = [model.config.text_config for model in models]
    numbers = sum(2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim for text in texts)
    peak = torch.cuda.max_memory_allocated(pair.device) if pair.device.type == "cuda" else None
    return Held(target, draft, numbers * pair.target.dtype.itemsize, peak)


def hardware(device: torch.device) -> dict[str, str | int | None]:
    """What the trace's setting does not say of a machine."""
    found: dict[str, str | int | None] = {"system": platform.platform(), "cores": os.cpu_count()}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found |= {"gpu": gpu.name, "gpu_memory": gpu.total_memory, "cuda": torch.version.cuda}
    return found


def as_json(found: Measured) -> dict[str, Any]:
    """Seconds as measured; for every lane also what follows from them."""
    data, alone = asdict(found), found.cycles[ALONE]
    for name, cycle in found.cycles.items():
        data["cycles"][name]["break_even_tau"] = cycle.break_even(alone)
        data["cycles"][name]["speedup"] = {tau: cycle.speedup(alone, tau) for tau in TAUS}
    return data


def rows_of(found: Measured) -> Iterator[list[str]]:
    """Yield what passes take, then what steps take and bring by tokens per pass."""
    times = {
        "picture, vision tower": found.vision,
        f"target reads {found.prompt_tokens} tokens": found.target_prefill,
        f"draft reads {found.prompt_tokens} tokens": found.draft_prefill,
        **{f"target pass, {n} tokens": seconds for n, seconds in found.target_pass.items()},
        **{f"draft pass, {n} wide": seconds for n, seconds in found.draft_pass.items()},
    }
    empty = [""] * (1 + len(TAUS))
    for name, seconds in times.items():
        yield [name, f"{1e3 * seconds:.2f}", *empty]
    alone = found.cycles[ALONE]
    for name, cycle in found.cycles.items():
        title = f"{name}: {cycle.guesses:.0f} guesses, {cycle.levels:.0f} deep" if cycle.guesses else name
        speedups = [f"{cycle.speedup(alone, tau):.2f}×" if cycle.guesses else "" for tau in TAUS]
        yield [title, f"{1e3 * cycle.total:.2f}", f"{cycle.break_even(alone):.2f}", *speedups]


def main(size: SizeName = "7b", json: Path | None = None, device: str = "auto", repeats: int = 5) -> None:
    """Measure a pair with random weights.

    Args:
        size: 7b is LLaVA-1.5-7B with a draft of 160M.
        json: write all numbers to this file.
        device: cpu, cuda or cuda:N; auto takes the GPU if there is one.
        repeats: passes of each kind, and answers of each lane.

    Raises:
        ValueError: the models do not fit the device.
    """
    place, dtype = device_for(size_of(size), device)
    pair = build(size, place, dtype)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    found, setting = measure(pair, repeats), pair.info
    held = memory(pair)
    title = (
        f"{size}, random weights, {setting.dtype} on {setting.device}: times, and speed-up by τ; passes are behind"
        f" {CONTEXT} tokens, steps behind the prompt; {held}"
    )
    show_table(("measured", "ms", "even at τ", *(f"τ = {tau:g}" for tau in TAUS)), rows_of(found), title)
    shown = {"size": size, "date": time.strftime("%Y-%m-%d"), "setting": asdict(setting), "repeats": repeats}
    shown["hardware"] = hardware(place)
    write_json(json, {**shown, "bytes": asdict(held), "seconds": as_json(found)})


if __name__ == "__main__":
    run_command(main)
