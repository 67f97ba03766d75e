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
class _Run:
    """Recipe, processes and output directory of every training stage."""

    root: Path
    recipe: ToyRecipe
    processor: LlavaProcessor
    accelerator: Accelerator
    compiled: bool

    def checkpoints(self, stage: str) -> Path:
        return self.root / "work" / "checkpoints" / stage.replace(" ", "-")

    def packed(self, batch: int, talks: Sequence[Questioner], first: int = 0) -> PackedBatches:
        return PackedBatches(self.processor, batch, self.recipe.image_tokens, talks, first)

    def llava(self, layers: int, hidden: int) -> LlavaConfig:
        return self.recipe.llava_config(layers, hidden, special_ids(self.processor), tied=True)

    def teacher(self) -> LlavaForConditionalGeneration:
        """Load the finished target."""
        target = LlavaForConditionalGeneration.from_pretrained(self.root / TARGET, dtype=torch.float32)
        return target.to(self.accelerator.device).eval()


def train(output: Path, recipe: ToyRecipe, compiled: bool | None = None) -> None:
    """Run every stage that is not done yet.

    Args:
        output: directory of the run; ``target``, ``draft``, ``draft-before``, ``eagle`` and ``eagle-compressed`` appear
            in it.
        compiled: compile the tower, the last target and what distils (1.2 to 1.4 times faster on two cores); default:
            where a C++ compiler is found or on a GPU.
    """
    accelerator = Accelerator(mixed_precision="bf16" if bfloat16_is_fast() else "no")
    if compiled is None:
        compiled = accelerator.device.type != "cpu" or shutil.which("g++") is not None
    if not (output / PROCESSOR).exists():
        build_processor(recipe).save_pretrained(output / PROCESSOR)
    run = _Run(output, recipe, AutoProcessor.from_pretrained(output / PROCESSOR), accelerator, compiled)
    stages = (
        ("vision tower", TOWER, _train_tower),
        ("aligned target", ALIGNED, _align),
        ("talking target", TALKING_TARGET, _talk),
        ("target", TARGET, _ask),
        ("draft", DRAFT_BEFORE, _train_draft),
        ("distilled draft", DRAFT, _distil),
        ("eagle, short rollouts", EAGLE_SHORT, _train_short_eagle),
        ("eagle", EAGLE, _train_eagle),
        ("eagle, compressed", EAGLE_COMPRESSED, _compress_eagle),
    )
    for name, part, stage in stages:
        if not (output / part).exists():
            start = time.perf_counter()
            stage(run, output / part)
            shutil.rmtree(run.checkpoints(name), ignore_errors=True)  # the part is saved
            with (output / "log.jsonl").open("a") as file:
                file.write(json.dumps({"stage": name, "seconds": round(time.perf_counter() - start, 1)}) + "\n")


def bfloat16_is_fast() -> bool:
    """Check for bfloat16 instructions: without them a CPU multiplies it several times slower than float32."""
    return torch.cuda.is_available() or bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _train_tower(run: _Run, part: Path) -> None:
    set_seed(run.recipe.vision.seed)
    seer = ToyVisionTower(CLIPVisionModel(run.recipe.vision_config()))
    if run.compiled:
        seer.tower.compile()
    images = run.processor.image_processor
    batches = SceneBatches(images, run.recipe.vision_batch, run.recipe.image_tokens)
    checkpoints = run.checkpoints("vision tower")
    fit("vision tower", seer, tower_losses, batches, run.recipe.vision, checkpoints, run.accelerator)
    seer.tower.save_pretrained(part)


def _align(run: _Run, part: Path) -> None:
    """Train the first layers of a target on bare lists of objects and positions, with the tower frozen."""
    set_seed(run.recipe.align.seed)
    config = run.llava(run.recipe.aligned_layers, run.recipe.target_hidden)
    target = LlavaForConditionalGeneration(config)
    target.model.vision_tower = CLIPVisionModel.from_pretrained(run.root / TOWER)
    _fit_packed("aligned target", target, run.packed(run.recipe.align_batch, LOOKING), run.recipe.align, run)
    save(target, run.processor, part, torch.float32)


def _talk(run: _Run, part: Path) -> None:
    """Add layers to the aligned target and train it on free conversations."""
    set_seed(run.recipe.target.seed)
    target = LlavaForConditionalGeneration.from_pretrained(run.root / ALIGNED, dtype=torch.float32)
    target = deepen(target, run.llava(run.recipe.target_layers, run.recipe.target_hidden))
    batches = run.packed(run.recipe.target_batch, TALKING, TALKING_START)
    _fit_packed("talking target", target, batches, run.recipe.target, run)
    save(target, run.processor, part)


def _ask(run: _Run, part: Path) -> None:
    """Train the talking target on questions, several independent ones about each picture."""
    set_seed(run.recipe.asking.seed)
    # Compiled, plain attention is faster than PyTorch's fused one, whose backward pass takes a quarter of a step.
    target = LlavaForConditionalGeneration.from_pretrained(
        run.root / TALKING_TARGET, dtype=torch.float32, attn_implementation="eager"
    )
    if run.compiled:
        target.model.language_model.compile(dynamic=True)
    batches = run.packed(run.recipe.asking_batch, ASKING, ASKING_START)
    _fit_packed("target", target, batches, run.recipe.asking, run, batches.hints)
    save(target, run.processor, part)


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


def _train_draft(run: _Run, part: Path) -> None:
    """Train the first draft on the corpus alone, in the same packed rows, with only the tower of the target."""
    set_seed(run.recipe.draft.seed)
    draft = DraftLlava(run.llava(run.recipe.draft_layers, run.recipe.draft_hidden))
    batches = run.packed(run.recipe.draft_batch, DRAFTING, TALKING_START)
    losses = partial(draft_losses, tower_model=run.teacher(), scenery=run.recipe.scenery_weight)
    fit("draft", draft, losses, batches, run.recipe.draft, run.checkpoints("draft"), run.accelerator)
    save(draft, run.processor, part)


def _distil(run: _Run, part: Path) -> None:
    """Train the second draft from the first, on the target's distributions as well as the corpus.

    The stage is the one of the ``distill`` command.
    """
    set_seed(run.recipe.distill.seed)
    draft = DraftLlava.from_pretrained(run.root / DRAFT_BEFORE, dtype=torch.float32)
    target = run.teacher()
    if run.compiled:
        for model in (target, draft):
            model.model.language_model.compile()
    batches = ChatBatches(run.processor, run.recipe.distill_batch, run.recipe.image_tokens)
    objective, checkpoints = Objective(run.recipe.kl_weight), run.checkpoints("distilled draft")
    distil("distilled draft", draft, target, batches, objective, run.recipe.distill, checkpoints, run.accelerator)
    save(draft, run.processor, part)


def _train_short_eagle(run: _Run, part: Path) -> None:
    """Train a draft of one layer that reads the target's states on short rollouts, from nothing."""
    target, recipe = run.teacher(), run.recipe
    seed, heads, intermediate = recipe.eagle_short.seed, recipe.eagle_heads, recipe.eagle_intermediate
    draft = fresh_feature_draft(target, seed=seed, heads=heads, intermediate_size=intermediate)
    _teach_eagle("eagle, short rollouts", draft, target, recipe.short_rollout, recipe.eagle_short, 0, run)
    save(draft, None, part, torch.float32)


def _train_eagle(run: _Run, part: Path) -> None:
    """Train it further on long rollouts: its states drift apart after the last step that it has learnt."""
    target, recipe = run.teacher(), run.recipe
    draft = training_draft(run.root / EAGLE_SHORT, target)
    _teach_eagle("eagle", draft, target, recipe.long_rollout, recipe.eagle, recipe.eagle_short.steps, run)
    save(draft, None, part)


def _compress_eagle(run: _Run, part: Path) -> None:
    """Train it, begun as it is, to read fewer entries of the picture."""
    target, recipe = run.teacher(), run.recipe
    draft = training_draft(run.root / EAGLE, target)
    assert isinstance(draft, FeatureDraft)
    add_compressor(draft, CompressorConfig(recipe.eagle_compressor), recipe.eagle_compressed.seed)
    done = recipe.eagle_short.steps + recipe.eagle.steps
    _teach_eagle("eagle, compressed", draft, target, recipe.long_rollout, recipe.eagle_compressed, done, run)
    save(draft, None, part)


def _teach_eagle(
    name: str,
    draft: PreTrainedModel,
    target: LlavaForConditionalGeneration,
    objective: FeatureObjective,
    loop: LoopConfig,
    first: int,
    run: _Run,
) -> None:
    """Teach an EagleVLM in the stage of the ``distill`` command, from batch number ``first`` on."""
    if run.compiled:
        target.model.language_model.compile()
    batches = ChatBatches(run.processor, run.recipe.eagle_batch, run.recipe.image_tokens, first)
    distil(name, draft, target, batches, objective, loop, run.checkpoints(name), run.accelerator)


def _fit_packed(
    name: str,
    model: LlavaForConditionalGeneration,
    batches: PackedBatches,
    loop: LoopConfig,
    run: _Run,
    hints: Hints | None = None,
) -> None:
    """Train on packed rows, with the tower frozen."""
    model.model.vision_tower.requires_grad_(False)
    losses = target_losses(run.recipe, content_ids(run.processor.tokenizer), hints)
    fit(name, model, losses, batches, loop, run.checkpoints(name), run.accelerator)
