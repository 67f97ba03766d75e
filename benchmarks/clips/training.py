"""The toy pair taught to watch clips: target and draft go on from the shipped weights, on 1, 2 and 4 frames in turn.

    python -m benchmarks.clips.training --output runs/clips

A part that is done is not done again, and a training that was cut short goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import AutoProcessor

from benchmarks.clips.batches import ClipBatches
from benchmarks.shared.command import run_command
from benchmarks.shared.draft_training import load_target, teach_draft
from specllava.distill.config import LoopConfig
from specllava.distill.loop import fit
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.models.loading.presets import presets
from specllava.toyworld.corpus import content_ids
from specllava.toyworld.packed_losses import target_losses
from specllava.toyworld.recipe import ToyRecipe


@dataclass(frozen=True, slots=True)
class ClipTraining:
    """How the pair learns.

    Args:
        output: directory of ``target`` and ``draft``.
        frames: numbers of frames that batches show, in turn.
        batch: clips of a step; each is asked about once by every family of questions.
        kl_weight: of KL(target ‖ draft) in the draft's loss; the rest is the cross-entropy.
    """

    output: Path = Path("runs/clips")
    frames: tuple[int, ...] = (1, 2, 4)
    batch: int = 4
    kl_weight: float = 0.5
    target: LoopConfig = field(default_factory=lambda: LoopConfig(700, 4e-4, warmup=30, checkpoint_every=50, seed=21))
    draft: LoopConfig = field(default_factory=lambda: LoopConfig(300, 1e-3, warmup=30, checkpoint_every=50, seed=22))


def train_clip_pair(training: ClipTraining) -> None:
    """Train target and draft, unless they are there.

    Raises:
        FloatingPointError: a loss is not finite; the last checkpoint is kept.
    """
    toy, accelerator = presets()["toy"], Accelerator(cpu=True)
    processor = AutoProcessor.from_pretrained(toy.target)
    recipe = ToyRecipe()
    batches = partial(ClipBatches, processor, training.batch, recipe.image_tokens, training.frames)
    places = {name: training.output / name for name in ("target", "draft")}
    checkpoints = training.output / "checkpoints"
    if not places["target"].exists():
        target = load_target(toy.target)
        target.model.vision_tower.requires_grad_(False)
        losses = target_losses(recipe, content_ids(processor.tokenizer))
        fit("target", target.train(), losses, batches(0), training.target, checkpoints / "target", accelerator)
        save(target, processor, places["target"], torch.float32)
    if not places["draft"].exists():
        assert toy.draft is not None
        draft = DraftLlava.from_pretrained(toy.draft, dtype=torch.float32)
        first = training.target.steps * training.batch  # clips that the target has not learnt
        teach_draft(
            draft, load_target(places["target"]), processor, batches(first), training.draft, training.kl_weight,
            places["draft"], accelerator,
        )  # fmt: skip


if __name__ == "__main__":
    run_command(train_clip_pair, ClipTraining)
