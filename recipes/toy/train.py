"""Training of the toy pair from nothing: tokenizer, vision tower, target, draft before and after distillation, eagle.

Each stage leaves its part in the output directory and is skipped when the part is there, and each training
loop resumes from its checkpoint; so the one command may be killed and repeated.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import (
    AutoProcessor,
    CLIPVisionModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
)

from recipes.toy.build import build_processor, special_ids
from recipes.toy.corpus import ASKING, DRAFTING, LOOKING, TALKING, ChatBatches, PackedBatches, Questioner, content_ids
from recipes.toy.hints import Hints
from recipes.toy.packed_losses import draft_losses, target_losses
from recipes.toy.recipe import ToyRecipe
from recipes.toy.vision import SceneBatches, ToyVisionTower, tower_losses
from specllava.distill.config import FeatureObjective, LoopConfig, Objective
from specllava.distill.new_draft import training_draft
from specllava.distill.train import distil, fit
from specllava.models.drafts.compressor import add_compressor
from specllava.models.drafts.draft_vlm import DraftLlava, save
from specllava.models.drafts.eagle import FeatureDraft, fresh_feature_draft
from specllava.models.options import CompressorConfig

TALKING_START = 200_000  # sample numbers that alignment does not reach
ASKING_START = 300_000  # nor does talking reach these
# Directories of the parts below the output directory; a stage whose part exists is done.
PROCESSOR, TOWER, ALIGNED, EAGLE_SHORT = "work/processor", "work/tower", "work/aligned", "work/eagle-short"
TALKING_TARGET = "work/talking"
TARGET, DRAFT_BEFORE, DRAFT, EAGLE, EAGLE_COMPRESSED = "target", "draft-before", "draft", "eagle", "eagle-compressed"


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of training: its name, loop and part, and what all stages share."""

    name: str
    loop: LoopConfig
    part: Path
    root: Path
    recipe: ToyRecipe
    processor: LlavaProcessor
    accelerator: Accelerator
    compiled: bool

    @property
    def checkpoints(self) -> Path:
        return self.root / "work" / "checkpoints" / self.name.replace(" ", "-")

    def packed(self, batch: int, talks: Sequence[Questioner], first: int = 0) -> PackedBatches:
        return PackedBatches(self.processor, batch, self.recipe.image_tokens, talks, first)

    def llava(self, layers: int, hidden: int) -> LlavaConfig:
        return self.recipe.llava_config(layers, hidden, special_ids(self.processor), tied=True)

    def teacher(self) -> LlavaForConditionalGeneration:
        """Load the finished target."""
        target = LlavaForConditionalGeneration.from_pretrained(self.root / TARGET, dtype=torch.float32)
        return target.to(self.accelerator.device).eval()


def train(output: Path, recipe: ToyRecipe) -> None:
    """Run every stage that is not done yet.

    Args:
        output: directory of the run; ``target``, ``draft``, ``draft-before``, ``eagle`` and ``eagle-compressed`` appear
            in it.
    """
    # Without instructions of its own a CPU multiplies bfloat16 several times slower than float32.
    fast = torch.cuda.is_available() or bool(torch.cpu.get_capabilities().get("amx_bf16"))
    accelerator = Accelerator(mixed_precision="bf16" if fast else "no")
    compiled = recipe.compiled and (accelerator.device.type != "cpu" or shutil.which("g++") is not None)
    if not (output / PROCESSOR).exists():
        build_processor(recipe).save_pretrained(output / PROCESSOR)
    processor = AutoProcessor.from_pretrained(output / PROCESSOR)
    stages = (
        ("vision tower", recipe.vision, TOWER, _train_tower),
        ("aligned target", recipe.align, ALIGNED, _align),
        ("talking target", recipe.target, TALKING_TARGET, _talk),
        ("target", recipe.asking, TARGET, _ask),
        ("draft", recipe.draft, DRAFT_BEFORE, _train_draft),
        ("distilled draft", recipe.distill, DRAFT, _distil),
        ("eagle, short rollouts", recipe.eagle_short, EAGLE_SHORT, _train_short_eagle),
        ("eagle", recipe.eagle, EAGLE, _train_eagle),
        ("eagle, compressed", recipe.eagle_compressed, EAGLE_COMPRESSED, _compress_eagle),
    )
    for name, loop, part, run in stages:
        if not (output / part).exists():
            start = time.perf_counter()
            stage = _Stage(name, loop, output / part, output, recipe, processor, accelerator, compiled)
            set_seed(loop.seed)
            run(stage)
            shutil.rmtree(stage.checkpoints, ignore_errors=True)  # the part is saved
            with (output / "log.jsonl").open("a") as file:
                file.write(json.dumps({"stage": name, "seconds": round(time.perf_counter() - start, 1)}) + "\n")


def _train_tower(stage: _Stage) -> None:
    seer = ToyVisionTower(CLIPVisionModel(stage.recipe.vision_config()))
    if stage.compiled:
        seer.tower.compile()
    images = stage.processor.image_processor
    batches = SceneBatches(images, stage.recipe.vision_batch, stage.recipe.image_tokens)
    fit(stage.name, seer, tower_losses, batches, stage.loop, stage.checkpoints, stage.accelerator)
    seer.tower.save_pretrained(stage.part)


def _align(stage: _Stage) -> None:
    """Train the first layers of a target on bare lists of objects and positions, with the tower frozen."""
    config = stage.llava(stage.recipe.aligned_layers, stage.recipe.target_hidden)
    target = LlavaForConditionalGeneration(config)
    target.model.vision_tower = CLIPVisionModel.from_pretrained(stage.root / TOWER)
    _fit_packed(stage, target, stage.packed(stage.recipe.align_batch, LOOKING))
    save(target, stage.processor, stage.part, torch.float32)


def _talk(stage: _Stage) -> None:
    """Add layers to the aligned target and train it on free conversations."""
    target = LlavaForConditionalGeneration.from_pretrained(stage.root / ALIGNED, dtype=torch.float32)
    target = deepen(target, stage.llava(stage.recipe.target_layers, stage.recipe.target_hidden))
    batches = stage.packed(stage.recipe.target_batch, TALKING, TALKING_START)
    _fit_packed(stage, target, batches)
    save(target, stage.processor, stage.part)


def _ask(stage: _Stage) -> None:
    """Train the talking target on questions, several independent ones about each picture."""
    # Compiled, plain attention is faster than PyTorch's fused one, whose backward pass takes a quarter of a step.
    target = LlavaForConditionalGeneration.from_pretrained(
        stage.root / TALKING_TARGET, dtype=torch.float32, attn_implementation="eager"
    )
    if stage.compiled:
        target.model.language_model.compile(dynamic=True)
    batches = stage.packed(stage.recipe.asking_batch, ASKING, ASKING_START)
    _fit_packed(stage, target, batches, batches.hints)
    save(target, stage.processor, stage.part)


def deepen(model: LlavaForConditionalGeneration, config: LlavaConfig) -> LlavaForConditionalGeneration:
    """Add the layers of ``config`` that a model lacks, after its own; at first they change nothing.

    They are copies of the old layers, in their order, whose last projections are zero; so the logits are the same.
    """
    deeper = LlavaForConditionalGeneration(config)
    deeper.model.vision_tower = model.model.vision_tower
    old, new = model.model.language_model, deeper.model.language_model
    deeper.model.multi_modal_projector.load_state_dict(model.model.multi_modal_projector.state_dict())
    new.embed_tokens.load_state_dict(old.embed_tokens.state_dict())
    new.norm.load_state_dict(old.norm.state_dict())
    for number, layer in enumerate(new.layers):
        layer.load_state_dict(old.layers[number % len(old.layers)].state_dict())
        if number >= len(old.layers):
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return deeper


def _train_draft(stage: _Stage) -> None:
    """Train the first draft on the corpus alone, in the same packed rows, with only the tower of the target."""
    draft = DraftLlava(stage.llava(stage.recipe.draft_layers, stage.recipe.draft_hidden))
    batches = stage.packed(stage.recipe.draft_batch, DRAFTING, TALKING_START)
    losses = partial(draft_losses, tower_model=stage.teacher(), scenery=stage.recipe.scenery_weight)
    fit(stage.name, draft, losses, batches, stage.loop, stage.checkpoints, stage.accelerator)
    save(draft, stage.processor, stage.part)


def _distil(stage: _Stage) -> None:
    """Train the second draft from the first, on the target's distributions as well as the corpus."""
    draft = DraftLlava.from_pretrained(stage.root / DRAFT_BEFORE, dtype=torch.float32)
    if stage.compiled:
        draft.model.language_model.compile()
    _teach(stage, draft, stage.teacher(), stage.recipe.distill_batch, Objective(stage.recipe.kl_weight))
    save(draft, stage.processor, stage.part)


def _train_short_eagle(stage: _Stage) -> None:
    """Train a draft of one layer that reads the target's states on short rollouts, from nothing."""
    target, recipe = stage.teacher(), stage.recipe
    heads, intermediate = recipe.eagle_heads, recipe.eagle_intermediate
    draft = fresh_feature_draft(target, seed=stage.loop.seed, heads=heads, intermediate_size=intermediate)
    _teach(stage, draft, target, recipe.eagle_batch, recipe.short_rollout)
    save(draft, None, stage.part, torch.float32)


def _train_eagle(stage: _Stage) -> None:
    """Train it further on long rollouts: its states drift apart after the last step that it has learnt."""
    target, recipe = stage.teacher(), stage.recipe
    draft = training_draft(stage.root / EAGLE_SHORT, target)
    _teach(stage, draft, target, recipe.eagle_batch, recipe.long_rollout, recipe.eagle_short.steps)
    save(draft, None, stage.part)


def _compress_eagle(stage: _Stage) -> None:
    """Train it, begun as it is, to read fewer entries of the picture."""
    target, recipe = stage.teacher(), stage.recipe
    draft = training_draft(stage.root / EAGLE, target)
    assert isinstance(draft, FeatureDraft)
    add_compressor(draft, CompressorConfig(recipe.eagle_compressor), stage.loop.seed)
    done = recipe.eagle_short.steps + recipe.eagle.steps
    _teach(stage, draft, target, recipe.eagle_batch, recipe.long_rollout, done)
    save(draft, None, stage.part)


def _teach(
    stage: _Stage, draft: PreTrainedModel, target: LlavaForConditionalGeneration, batch: int,
    objective: Objective | FeatureObjective, first: int = 0,
) -> None:  # fmt: skip
    """Teach a draft in the stage of the ``distill`` command, from batch number ``first`` on."""
    if stage.compiled:
        target.model.language_model.compile()
    batches = ChatBatches(stage.processor, batch, stage.recipe.image_tokens, first)
    distil(stage.name, draft, target, batches, objective, stage.loop, stage.checkpoints, stage.accelerator)


def _fit_packed(
    stage: _Stage, model: LlavaForConditionalGeneration, batches: PackedBatches, hints: Hints | None = None
) -> None:
    """Train on packed rows, with the tower frozen."""
    model.model.vision_tower.requires_grad_(False)
    losses = target_losses(stage.recipe, content_ids(stage.processor.tokenizer), hints)
    fit(stage.name, model, losses, batches, stage.loop, stage.checkpoints, stage.accelerator)
