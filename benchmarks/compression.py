"""What a visual compressor saves a draft at the numbers of image slots of LLaVA-1.5 and LLaVA-NeXT.

    python -m benchmarks.compression --json benchmarks/results/compression.json

Drafts have random weights and small widths, so that a CPU runs them; slots are as published. Time and cache depend on
shapes alone, tokens accepted do not: ``python -m benchmarks.drafters`` counts those.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlamaForCausalLM, LlavaConfig

from benchmarks.shared.command import run_command, show_table
from specllava.cli.options import write_json
from specllava.models.drafts.compressor_config import KINDS, CompressorConfig, CompressorKind
from specllava.models.drafts.draft_classes import DraftLlava
from specllava.models.drafts.feature_draft import FeatureDraft, FeatureDraftConfig
from specllava.models.drafts.fused import fuse
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
    """Return an EagleVLM that is given states and merged embeddings, as after the target's prefill."""
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
def measure(subjects: list[Subject], repeats: int) -> list[dict[str, Any]]:
    """Time subjects in rotation, so that other work on the machine affects all alike; the first round warms up.

    Returns:
        For each the compressor and the operator that ran (of a gate, its random weights' choice). Columns of the
        draft's KV cache after the prefill, and their megabytes in float32. Median milliseconds of the prefill, and of
        a pass over a level of :data:`LEVEL` nodes.
    """
    rows: list[dict[str, Any]] = []
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in subjects]
    for repeat in range(1 + repeats):
        for subject, (prefills, passes) in zip(subjects, taken, strict=True):
            started = now(CPU)
            engine, operator = subject.prefill()
            read = now(CPU)
            columns = engine.cache.length
            engine.forward(PassInput([5] * LEVEL))
            if repeat:
                prefills.append(read - started)
                passes.append(now(CPU) - read)
                continue
            megabytes = round(engine.cache.nbytes * columns / engine.cache.capacity / 1e6, 2)
            rows.append({
                "draft": subject.draft, "compressor": subject.compressor, "operator": operator,
                "slots": subject.slots, "columns": columns, "megabytes": megabytes,
            })  # fmt: skip
    for row, (prefills, passes) in zip(rows, taken, strict=True):
        row["prefill_ms"], row["pass_ms"] = (round(1e3 * statistics.median(one), 2) for one in (prefills, passes))
    return rows


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return heads and lines: a line per draft and compressor, and columns for each number of slots."""
    heads = ["draft", "compressor"]
    lines: dict[tuple[str, str], list[str]] = {}
    for model, slots in MODELS.items():
        heads += [f"{model}, {slots} slots: columns", "MB", "prefill, ms", "pass, ms"]
        for row in rows:
            if row["slots"] == slots:
                figures = [str(row["columns"]), f"{row['megabytes']:.2f}"]
                figures += [f"{row['prefill_ms']:.0f}", f"{row['pass_ms']:.1f}"]
                lines.setdefault((row["draft"], row["compressor"]), []).extend(figures)
    return heads, [(*names, *figures) for names, figures in lines.items()]


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
    rows: list[dict[str, Any]] = []
    for slots in MODELS.values():
        rows += measure([eagle_subject(kind, slots, eagle_hidden, target) for kind in kinds], repeats)
        vlms = [vlm_subject(kind, slots, vlm_hidden, vlm_layers) for kind in kinds if kind != "gate"]
        rows += measure(vlms, repeats)
    show_table(*table(rows))
    shapes = {"eagle_hidden": eagle_hidden, "vlm_hidden": vlm_hidden, "vlm_layers": vlm_layers, "text": TEXT}
    setting = asdict(run_info("random", target, "random", "random", "none"))
    write_json(json, {"rows": rows, "shapes": shapes, "level": LEVEL, "repeats": repeats, "setting": setting})


if __name__ == "__main__":
    run_command(main)
