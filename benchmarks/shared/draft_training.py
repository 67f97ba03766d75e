"""Training of draft VLMs, of any size and for any target of the toy world, on packed rows of its corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from specllava.distill.config import DistillConfig, LoopConfig
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.losses import answer_positions
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.toyworld.build import special_ids
from specllava.toyworld.packed_losses import packed_states, slot_loss
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.train import bfloat16_is_fast

UNREAD: Final = 70_000_000  # sample numbers that no other training reaches


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Layers of a draft's language model, and their width."""

    layers: int
    hidden: int

    def build(self, processor: LlavaProcessor, recipe: ToyRecipe, seed: int) -> DraftLlava:
        """Return a draft with random weights."""
        torch.manual_seed(seed)
        return DraftLlava(recipe.llava_config(self.layers, self.hidden, special_ids(processor), tied=True))


def training_accelerator() -> Accelerator:
    """Return what trains on this CPU: in bfloat16 where it has instructions for that, else in float32."""
    return Accelerator(mixed_precision="bf16" if bfloat16_is_fast() else "no", cpu=True)


def load_target(directory: Path | str) -> LlavaForConditionalGeneration:
    """Load a target in float32; parts of it may then learn."""
    return LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)


def with_loop(training: DistillConfig, loop: LoopConfig, batch: int) -> DistillConfig:
    """Return the options of a distillation as long as another training, and without validations between."""
    shared = {one.name for one in fields(LoopConfig)} & DistillConfig.__dataclass_fields__.keys()
    values = {name: getattr(loop, name) for name in shared}
    return replace(training, **values, batch=batch, validation_prompts=4)


def packed_draft_losses(
    draft: DraftLlava, batch: Batch, target: LlavaForConditionalGeneration, kl_weight: float, scenery: float
) -> Losses:
    """Return a draft's losses on packed rows: answers, KL(target ‖ draft) on them, words of slots before its layer."""
    with torch.no_grad():
        known, _ = answer_positions(packed_states(target, batch, target)[-1], batch["labels"])  # [answers, hidden]
        theirs = F.log_softmax(target.lm_head(known).float(), -1)  # [answers, vocab]
    layers = packed_states(draft, batch, target)
    predicting, words = answer_positions(layers[-1], batch["labels"])  # [answers, hidden], [answers]
    ours = F.log_softmax(draft.lm_head(predicting).float(), -1)
    answers = F.nll_loss(ours, words)
    kl = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    naming = slot_loss(draft, layers[0], batch, scenery)
    loss = (1 - kl_weight) * answers + kl_weight * kl + naming
    return {"loss": loss, "answers": answers, "kl": kl, "naming": naming}


def teach_draft(
    draft: DraftLlava,
    target: LlavaForConditionalGeneration,
    processor: LlavaProcessor,
    batches: Callable[[int], Batch],
    loop: LoopConfig,
    kl_weight: float,
    directory: Path,
    accelerator: Accelerator,
) -> None:
    """Train a draft and save it in float32; go on from ``checkpoints`` beside it if an earlier call was cut short.

    Args:
        batches: batch number to packed rows.
        directory: of the draft; one that is there is not trained again.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    if directory.exists():
        return
    losses = partial(
        packed_draft_losses, target=target.eval().requires_grad_(False), kl_weight=kl_weight,
        scenery=ToyRecipe().scenery_weight,
    )  # fmt: skip
    checkpoints = directory.parent / "checkpoints" / directory.name
    fit(directory.name, draft.train(), losses, batches, loop, checkpoints, accelerator)
    save(draft, processor, directory, torch.float32)
