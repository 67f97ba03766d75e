"""The toy pair taught to watch clips: target and draft go on from the shipped weights, on 1, 2 and 4 frames in turn.

    python -m benchmarks.clips.training --output runs/clips

A part that is done is not done again, and a training that was cut short goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from transformers import AutoProcessor, LlavaForConditionalGeneration

from benchmarks.clips.batches import ClipBatches
from benchmarks.shared.command import run_command
from specllava.distill.config import LoopConfig
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.losses import answer_positions
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.models.loading.presets import presets
from specllava.toyworld.corpus import content_ids
from specllava.toyworld.hints import NAMES, naming_loss
from specllava.toyworld.packed_losses import packed_states, target_losses
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
        target = _loaded(Path(toy.target))
        target.model.vision_tower.requires_grad_(False)
        losses = target_losses(recipe, content_ids(processor.tokenizer))
        fit("target", target.train(), losses, batches(0), training.target, checkpoints / "target", accelerator)
        save(target, processor, places["target"], torch.float32)
    if not places["draft"].exists():
        assert toy.draft is not None
        draft = DraftLlava.from_pretrained(toy.draft, dtype=torch.float32)
        draft_losses = partial(
            clip_draft_losses, target=_loaded(places["target"]).eval().requires_grad_(False),
            kl_weight=training.kl_weight, scenery=recipe.scenery_weight,
        )  # fmt: skip
        first = training.target.steps * training.batch  # clips that the target has not learnt
        fit("draft", draft.train(), draft_losses, batches(first), training.draft, checkpoints / "draft", accelerator)
        save(draft, processor, places["draft"], torch.float32)


def clip_draft_losses(
    draft: DraftLlava, batch: Batch, target: LlavaForConditionalGeneration, kl_weight: float, scenery: float
) -> Losses:
    """Return a draft's losses on packed rows: answers, KL(target ‖ draft) on them, words of slots before its layer."""
    with torch.no_grad():
        told, _ = answer_positions(packed_states(target, batch, target)[-1], batch["labels"])  # [answers, hidden]
        theirs = F.log_softmax(target.lm_head(told).float(), -1)  # [answers, vocab]
    layers = packed_states(draft, batch, target)
    said, words = answer_positions(layers[-1], batch["labels"])  # [answers, hidden], [answers]
    ours = F.log_softmax(draft.lm_head(said).float(), -1)
    answers = F.nll_loss(ours, words)
    kl = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    slots = batch["input_ids"].eq(draft.config.image_token_id)
    read = draft.model.language_model.norm(layers[0][slots])  # [slots, hidden]
    naming = naming_loss(draft.lm_head(read), batch["patch_names"][..., :NAMES].flatten(0, 1), scenery)
    loss = (1 - kl_weight) * answers + kl_weight * kl + naming
    return {"loss": loss, "answers": answers, "kl": kl, "naming": naming}


def _loaded(place: Path) -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration.from_pretrained(place, dtype=torch.float32)


if __name__ == "__main__":
    run_command(train_clip_pair, ClipTraining)
