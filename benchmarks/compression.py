"""What a visual compressor saves a draft at the numbers of image slots of LLaVA-1.5 and LLaVA-NeXT.

    python -m benchmarks.compression --json benchmarks/results/compression.json

Drafts have random weights and small widths, so that a CPU runs them; slots are as published. Time and cache depend on
shapes alone, tokens accepted do not: ``python -m benchmarks.drafters`` counts those.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlamaForCausalLM, LlavaConfig

from benchmarks.shared.command import markdown, run_command, show
from specllava.cli.options import write_json
from specllava.models.drafts.compressor_config import KINDS, CompressorConfig, CompressorKind
from specllava.models.drafts.draft_classes import DraftLlava
from specllava.models.drafts.feature_draft import FeatureDraft, FeatureDraftConfig
from specllava.models.loading.fused import fuse
from specllava.pair import run_info
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.passes import PassInput
from specllava.runtime.timing import now
from specllava.runtime.vision import kept_slots

MODELS = {"LLaVA-1.5": 576, "LLaVA-NeXT": 2880}  # image slots; of LLaVA-NeXT for a large picture
TEXT, MARKER, LEVEL, VOCABULARY = 64, 3, 8, 32064  # tokens of text, the image token, nodes of a level, tokens
EAGLE, VLM = "EagleVLM", "draft VLM"
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one draft with one compressor, medians.

    Args:
        draft: kind of draft.
        compressor: its name; ``none`` without one.
        operator: that ran: of a gate, what its random weights chose.
        slots: image slots of the prompt.
        columns: of the draft's KV cache once the prompt is read.
        megabytes: of keys and values in those columns, float32.
        prefill_ms, pass_ms: reading the prompt; one pass over a level of :data:`LEVEL` nodes behind it.
    """

    draft: str
    compressor: str
    operator: str
    slots: int
    columns: int
    megabytes: float
    prefill_ms: float
    pass_ms: float


@dataclass(slots=True)
class Subject:
    """A draft whose prefill and passes are timed.

    Args:
        prefill: reads the prompt; returns an engine and the name of the operator that ran.
    """

    draft: str
    compressor: str
    slots: int
    prefill: Callable[[], tuple[Engine | FeatureEngine, str]]


def llama(hidden: int, layers: int) -> dict[str, Any]:
    """Sizes of a Llama in LLaVA's proportions."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 11 * hidden // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
    }


def eagle_subject(kind: CompressorKind | None, slots: int, hidden: int, target: LlamaForCausalLM) -> Subject:
    """Return an EagleVLM that is given states and merged embeddings, as behind the target's prefill."""
    compressor = None if kind is None else CompressorConfig(kind).settings()
    config = FeatureDraftConfig(**llama(hidden, 1), input_norm=True, compressor=compressor)
    draft = FeatureDraft(config).eval().bind(target)
    fuse(draft)
    length = slots + TEXT
    tokens = torch.full((length - 1,), 5)
    tokens[8 : 8 + slots] = MARKER
    embeds, states = torch.randn(2, length - 1, hidden).unbind()
    contents = list(range(length))  # no column is reused

    def prefill() -> tuple[FeatureEngine, str]:
        engine = FeatureEngine(draft, length + LEVEL)
        entries = draft.entries(tokens, embeds, states)
        engine.prefill(entries, contents[: len(entries.positions)])
        return engine, entries.choice or "none"

    return Subject(EAGLE, kind or "none", slots, prefill)


def vlm_subject(kind: CompressorKind | None, slots: int, hidden: int, layers: int) -> Subject:
    """Return a draft VLM that is given the features of the target's tower."""
    vision = CLIPVisionConfig(hidden_size=hidden, num_hidden_layers=1, num_attention_heads=hidden // 64)
    compressor = {} if kind is None else {"compressor": CompressorConfig(kind).settings()}
    text = LlamaConfig(**llama(hidden, layers))
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=MARKER, **compressor)
    draft = DraftLlava(config).eval()
    fuse(draft)
    ids = torch.full((1, slots + TEXT), 5)
    ids[0, 8 : 8 + slots] = MARKER
    features = torch.randn(1, slots, hidden)
    read = ids[kept_slots(draft, ids, features)][None]

    def prefill() -> tuple[Engine, str]:
        engine = Engine(draft, slots + TEXT + LEVEL)
        engine.prefill(read, features)
        return engine, kind or "none"

    return Subject(VLM, kind or "none", slots, prefill)


@torch.inference_mode()
def measure(subjects: list[Subject], repeats: int) -> list[Cost]:
    """Measure subjects in rotation, so that whatever else the machine does falls on all; the first round warms up."""
    prefills: list[list[float]] = [[] for _ in subjects]
    passes: list[list[float]] = [[] for _ in subjects]
    found: list[Cost] = []
    for repeat in range(1 + repeats):
        for number, subject in enumerate(subjects):
            started = now(CPU)
            engine, name = subject.prefill()
            read = now(CPU)
            columns = engine.cache.length
            engine.forward(PassInput([5] * LEVEL))
            if repeat:
                prefills[number].append(read - started)
                passes[number].append(now(CPU) - read)
            else:
                megabytes = engine.cache.nbytes * columns / engine.cache.capacity / 1e6
                names = (subject.draft, subject.compressor, name)
                found.append(Cost(*names, subject.slots, columns, round(megabytes, 2), 0.0, 0.0))
    return [
        replace(cost, prefill_ms=_milliseconds(one), pass_ms=_milliseconds(other))
        for cost, one, other in zip(found, prefills, passes, strict=True)
    ]


def _milliseconds(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def table(costs: list[Cost]) -> str:
    """Return a table for the documentation: a row per draft and compressor, and columns for each number of slots."""
    heads = ["draft", "compressor"]
    lines: dict[tuple[str, str], list[str]] = {}
    for model, slots in MODELS.items():
        heads += [f"{model}, {slots} slots: columns", "MB", "prefill, ms", "pass, ms"]
        for cost in costs:
            if cost.slots == slots:
                figures = [str(cost.columns), f"{cost.megabytes:.2f}", f"{cost.prefill_ms:.0f}", f"{cost.pass_ms:.1f}"]
                lines.setdefault((cost.draft, cost.compressor), []).extend(figures)
    return markdown(heads, [(*names, *figures) for names, figures in lines.items()])


def main(
    repeats: int = 5, eagle_hidden: int = 1024, vlm_hidden: int = 512, vlm_layers: int = 4, json: Path | None = None
) -> None:
    """Measure every compressor on both kinds of draft.

    Args:
        repeats: prefills of each.
        eagle_hidden: hidden size of the EagleVLM, which is the target's (LLaVA-1.5-7B: 4096).
        vlm_hidden, vlm_layers: sizes of the draft VLM (llama-160m: 768 and 12).
        json: write the figures to this file.
    """
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(**llama(eagle_hidden, 1), image_token_id=MARKER)).eval()
    kinds: list[CompressorKind | None] = [None, *KINDS]
    costs: list[Cost] = []
    for slots in MODELS.values():
        costs += measure([eagle_subject(kind, slots, eagle_hidden, target) for kind in kinds], repeats)
        vlms = [vlm_subject(kind, slots, vlm_hidden, vlm_layers) for kind in kinds if kind != "gate"]
        costs += measure(vlms, repeats)
    show(table(costs))
    shapes = {"eagle_hidden": eagle_hidden, "vlm_hidden": vlm_hidden, "vlm_layers": vlm_layers, "text": TEXT}
    setting = asdict(run_info("random", target, "random", "random", "none"))
    rows = [asdict(cost) for cost in costs]
    write_json(json, {"rows": rows, "shapes": shapes, "level": LEVEL, "repeats": repeats, "setting": setting})


if __name__ == "__main__":
    run_command(main)
