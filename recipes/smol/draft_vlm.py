"""The draft VLM of the pair smol before distillation: a small language model that has learnt to look."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration, LlavaProcessor

from recipes.smol.losses import fact_losses
from recipes.smol.rows import SmolBatches
from recipes.toy.corpus import draw_pixels
from recipes.toy.scene import sample_any_scene
from specllava.distill.config import LoopConfig, Objective
from specllava.distill.losses import Batch, Losses
from specllava.distill.new_draft import init_draft, training_draft
from specllava.distill.train import fit
from specllava.models.drafts.draft_vlm import save, saved_beside
from specllava.models.family import tower_features

HEAD_SIZE: Final = 64  # as of its target
BATCH: Final = 16  # pictures


@dataclass(frozen=True, slots=True)
class DraftVlmRecipe:
    """Size of a draft VLM, and what it learns before distillation.

    Args:
        hidden: size of a state, a multiple of 64 above that.
        alignment: of its projector, with the target's image embeddings.
        looking: of all its weights, with answers to questions of fact.
        batch: pictures of a step of ``looking``.
    """

    hidden: int = 192
    layers: int = 4
    alignment: LoopConfig = field(default_factory=lambda: LoopConfig(400, 3e-3, warmup=20, weight_decay=0.0))
    looking: LoopConfig = field(
        default_factory=lambda: LoopConfig(1000, 2e-3, warmup=50, weight_decay=0.0, checkpoint_every=100)
    )
    batch: int = 4


def fresh_draft(target: Path, output: Path, recipe: DraftVlmRecipe, precision: str) -> Path:
    """Make a draft VLM that has learnt to look at ``output``, unless it is there already; return ``output``.

    May be killed and repeated: beside ``output`` are checkpoints.

    Args:
        precision: of all training in this process.
    """
    if output.exists():
        return output
    processor, model = read_target(target)
    model.float().requires_grad_(False)
    directions = principal_directions(model, recipe.hidden)
    with TemporaryDirectory() as scratch:
        language, made = Path(scratch, "language"), Path(scratch, "draft")
        small_language_model(model, directions, recipe.layers).save_pretrained(language)
        processor.tokenizer.save_pretrained(language)
        init_draft(language, target, made)
        draft = training_draft(made, model)
    accelerator = Accelerator(mixed_precision=precision, cpu=True)
    checkpoints = output.with_name(f"{output.name}-checkpoints")
    projector, pictures = draft.model.multi_modal_projector, partial(picture_batch, processor)
    aligned = partial(alignment_losses, target=model, directions=directions)
    fit("projector", projector, aligned, pictures, recipe.alignment, checkpoints / "projector", accelerator)
    answered = partial(fact_losses, tower_model=model, objective=Objective())
    rows = SmolBatches(processor, recipe.batch)
    fit("looking", draft.train(), answered, rows, recipe.looking, checkpoints / "looking", accelerator)
    save(draft, saved_beside(draft, processor), output, torch.float32)
    return output


def picture_batch(processor: LlavaProcessor, number: int) -> Batch:
    """Return ``pixel_values [16, 3, h, w]`` of scenes."""
    scenes = [sample_any_scene(index) for index in range(number * BATCH, (number + 1) * BATCH)]
    return {"pixel_values": draw_pixels(processor.image_processor, scenes)}


def alignment_losses(
    projector: nn.Module, batch: Batch, target: LlavaForConditionalGeneration, directions: Tensor
) -> Losses:
    """Return how far projected patches are from the target's in ``directions``, as a share of their variance."""
    with torch.no_grad():
        features = tower_features(target, batch["pixel_values"].to(target.dtype))
        wanted = target.model.multi_modal_projector(features).float() @ directions  # [b, patches, hidden]
    return {"loss": F.mse_loss(projector(features).float(), wanted) / wanted.var()}


@torch.no_grad()
def principal_directions(target: LlavaForConditionalGeneration, hidden: int) -> Tensor:
    """Return the directions ``[target's hidden size, hidden]`` in which word embeddings are largest."""
    table = target.get_input_embeddings().weight.float()
    largest: Tensor = torch.linalg.eigh(table.T @ table).eigenvectors[:, -hidden:]
    return largest


@torch.no_grad()
def small_language_model(target: LlavaForConditionalGeneration, directions: Tensor, layers: int) -> LlamaForCausalLM:
    """Return a language model whose word embeddings are the target's in ``directions``; its layers are random."""
    hidden = directions.shape[1]
    text = target.config.get_text_config()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=text.vocab_size,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(1, hidden // HEAD_SIZE),
            initializer_range=hidden**-0.5,
            max_position_embeddings=text.max_position_embeddings,
            rope_parameters=text.rope_parameters,
            rms_norm_eps=text.rms_norm_eps,
            bos_token_id=text.bos_token_id,
            eos_token_id=text.eos_token_id,
            tie_word_embeddings=True,
        )
    )
    model.get_input_embeddings().weight.copy_(target.get_input_embeddings().weight.float() @ directions)
    return model


def read_target(directory: Path) -> tuple[LlavaProcessor, LlavaForConditionalGeneration]:
    """Return processor and model of a target that is not trained."""
    target = LlavaForConditionalGeneration.from_pretrained(directory).eval()
    return LlavaProcessor.from_pretrained(directory), target
