"""Which draft is worth what on the toy pair: draft VLM, EagleVLM, and EagleVLM with each visual compressor.

    python -m benchmarks.drafters --begin assets/toy/eagle --work runs/drafters --json benchmarks/results/drafters.json

Each variant, EagleVLM itself too, begins as the given EagleVLM and learns as many steps on the same batches. So only
the compressor differs. What ``--work`` holds already is not trained again. One run measures all: every
drafter answers each held-out prompt in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from specllava.bench.draft_quality import draft_scores
from specllava.bench.lanes import REFERENCE, run_timed
from specllava.bench.results import LaneResult, pool
from specllava.bench.rounds import margins_of
from specllava.bench.timed_run import TimedRun
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.distill.config import LoopConfig
from specllava.distill.feature_losses import TargetTexts, feature_losses
from specllava.distill.initial_draft import training_draft
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.stage import answer_tokens, target_texts
from specllava.lane import Lane
from specllava.models.drafts.compressor_config import KINDS, CompressorConfig, CompressorKind
from specllava.models.drafts.compressors import add_compressor
from specllava.models.drafts.draft_classes import save
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import prompt_entries
from specllava.runtime.prompt import Prompt
from specllava.toyworld.corpus import ChatBatches
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene_questions import scene_questions

VLM, EAGLE = "draft VLM", "EagleVLM"
WARM_UP = 2  # prompts before the measured ones
FIRST_BATCH = 5_000  # of the toy corpus, after those that the toy recipe reads


@dataclass(slots=True)
class Found:
    """Measurements of a drafter in addition to its runs, summed over prompts.

    Args:
        divergence, tokens: KL(target ‖ draft) in nats over the target's answers, and their tokens.
        prefill: seconds in which the draft read the prompts.
        columns: of the draft's KV cache once the prompt is read.
        chosen: prompts by the operator that the draft's pictures went through.
    """

    divergence: float = 0.0
    tokens: int = 0
    prefill: float = 0.0
    columns: int = 0
    chosen: Counter[str] = field(default_factory=Counter)


def train_variants(pair: Pair, begin: Path, work: Path, steps: int, batches: int, rate: float) -> dict[str, Path]:
    """Train EagleVLM and its compressed variants on the same batches; returns their directories by name.

    Args:
        begin: directory of the EagleVLM that all begin as.
        batches: different ones, whose states the target computes once.
    """
    kinds: dict[str, CompressorKind | None] = {EAGLE: None, **{f"{EAGLE}, {kind}": kind for kind in KINDS}}
    places = {name: work / (kind or "eagle") for name, kind in kinds.items()}
    missing = [name for name, place in places.items() if not place.exists()]
    recipe, target = ToyRecipe(), pair.target
    target.requires_grad_(False)
    read = ChatBatches(pair.processor, recipe.eagle_batch, recipe.image_tokens)
    numbers = tqdm(range(FIRST_BATCH, FIRST_BATCH + batches), "states") if missing else ()
    taught = []
    for number in numbers:
        with torch.no_grad():
            texts = target_texts(target, read(number))
        half = (getattr(texts, part.name) for part in fields(texts))
        taught.append({part.name: _stored(one) for part, one in zip(fields(texts), half, strict=True)})
    loop = LoopConfig(steps, rate, warmup=min(10, steps // 2), checkpoint_every=steps, seed=recipe.eagle.seed)

    def losses(draft: FeatureDraft, batch: Batch) -> Losses:
        texts = TargetTexts(**{name: one.float() if one.is_floating_point() else one for name, one in batch.items()})
        return feature_losses(draft, texts, recipe.long_rollout)

    for name in missing:
        draft = training_draft(begin, target)
        kind = kinds[name]
        if kind is not None:
            add_compressor(draft, CompressorConfig(kind), recipe.eagle.seed)
        checkpoints = work / "checkpoints" / places[name].name
        batch_of = _Repeated(taught)
        fit(name, draft.train(), losses, batch_of, loop, checkpoints, Accelerator(cpu=True), None, answer_tokens)
        save(draft, None, places[name])
    return places


class _Repeated:
    """Batches by number that begin again when they are through."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def __call__(self, number: int) -> Batch:
        return self.batches[number % len(self.batches)]


def _stored(rows: torch.Tensor) -> torch.Tensor:
    return rows.bfloat16() if rows.is_floating_point() else rows


@torch.inference_mode()
def look(pair: Pair, prompt: Prompt, answer: Sequence[int], found: Found) -> None:
    """Add what a draft makes of a prompt and of the target's answer to it."""
    draft = pair.draft
    found.divergence += sum(draft_scores(pair, prompt, answer).divergences)
    found.tokens += len(answer)
    if not isinstance(draft, FeatureDraft):
        found.columns += (prompt.draft_prompt or prompt).length
        return
    engine = Engine(pair.target, prompt.length, draft.config.state_layers)
    states = engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).states
    assert states is not None
    entries, _ = prompt_entries(draft, pair.target, prompt, states)
    found.columns += len(entries.positions)
    found.chosen.update([entries.choice or "none"])


def measure(
    pairs: dict[str, Pair], prompts: int, config: DecodingConfig
) -> tuple[dict[str, LaneResult], dict[str, Found]]:
    """Answer every prompt with every drafter in turn, the target alone among them; the order rotates."""
    runs: dict[str, list[TimedRun]] = {name: [] for name in (REFERENCE, *pairs)}
    prompts_read: list[Prompt] = []
    found = {name: Found() for name in pairs}
    total = prompts + WARM_UP
    for number, asked in enumerate(tqdm(scene_questions("held-out", total), "prompts", total)):
        read = {name: pair.prompt(asked.image, asked.text) for name, pair in pairs.items()}
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name == REFERENCE:
                lane = Lane(name, replace(config, drafter="none"), read[VLM])
                runs[name].append(run_timed(pairs[VLM], lane))
            else:
                runs[name].append(run_timed(pairs[name], Lane(name, config, read[name])))
        if number < WARM_UP:
            runs = {name: [] for name in names}
            continue
        prompts_read.append(read[VLM])
        for name, pair in pairs.items():
            look(pair, read[name], runs[REFERENCE][-1].token_ids, found[name])
            found[name].prefill += runs[name][-1].draft_read_seconds
    margins = margins_of(runs, prompts_read, pairs[VLM], config)
    return pool(runs, range(prompts), margins), found


def row_of(result: LaneResult, found: Found, pair: Pair, prompts: int) -> dict[str, Any]:
    """Return a drafter's row: that of the bench, and means over prompts of what else was measured."""
    assert pair.draft is not None
    return result.as_json() | {
        "kl": found.divergence / found.tokens,
        "ms_draft_prefill": 1e3 * found.prefill / prompts,
        "columns": found.columns / prompts,
        "weights": sum(weight.numel() for weight in pair.draft.parameters()),
        "chosen": dict(found.chosen.most_common()),
    }


def main(
    begin: Path,
    work: Path,
    steps: int = 70,
    batches: int = 60,
    rate: float = 5e-4,
    prompts: int = 20,
    json: Path | None = None,
) -> None:
    """Train what is missing, and measure all.

    Args:
        begin: directory of the EagleVLM that all variants begin as.
        work: directory of the trained variants.
        steps: of training for each variant.
        batches: different ones, as large as the toy recipe's.
        rate: learning rate at its highest.
        prompts: held-out ones.
        json: write the rows to this file.
    """
    pair = Pair.from_preset("toy")
    places = train_variants(pair, begin, work, steps, batches, rate)
    pairs = {VLM: pair, **{name: pair.with_draft(place) for name, place in places.items()}}
    results, found = measure(pairs, prompts, DecodingConfig())
    rows = {name: row_of(results[name], found[name], each, prompts) for name, each in pairs.items()}
    heads = ("drafter", "τ", "speed-up", "KL, nats", "draft, ms a pass", "draft prefill, ms", "columns", "M weights")
    lines = [
        (name, f"{row['tau']:.2f}", f"{row['speedup']:.2f}", f"{row['kl']:.3f}", f"{row['ms_draft']:.1f}",
         f"{row['ms_draft_prefill']:.1f}", f"{row['columns']:.0f}", f"{row['weights'] / 1e6:.2f}")
        for name, row in rows.items()
    ]  # fmt: skip
    show_table(heads, lines)
    training = {"steps": steps, "batches": batches, "learning_rate": rate}
    write_json(json, {"rows": rows, "prompts": prompts, "training": training, "setting": asdict(pair.info)})


if __name__ == "__main__":
    run_command(main)
