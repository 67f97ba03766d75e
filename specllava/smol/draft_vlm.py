"""The draft VLM of the pair smol before distillation: a small language model that reads the target's tower."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration, LlavaProcessor

from specllava.distill.config import LoopConfig
from specllava.distill.initial_draft import training_draft
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.make_draft import init_draft
from specllava.models.drafts.draft_classes import save, saved_beside
from specllava.models.families.interface import tower_features
from specllava.toyworld.corpus import draw_pixels
from specllava.toyworld.scene import sample_any_scene

HEAD_SIZE: Final = 64  # as of its target
BATCH: Final = 16  # pictures


def fresh_draft(target: Path, hidden: int, output: Path, precision: str, alignment: LoopConfig) -> Path:
    """Make a draft VLM of a small language model at ``output``, unless it is there already; return ``output``.

    Its projector learns the target's image embeddings, in the directions that its word embeddings keep.

    Args:
        precision: of all training in this process.
    """
    if output.exists():
        return output
    processor, model = read_target(target)
    model.float().requires_grad_(False)
    directions = principal_directions(model, hidden)
    with TemporaryDirectory() as scratch:
        language, made = Path(scratch, "language"), Path(scratch, "draft")
        small_language_model(model, directions).save_pretrained(language)
        processor.tokenizer.save_pretrained(language)
        init_draft(language, target, made)
        draft = training_draft(made, model)
        losses = partial(alignment_losses, target=model, directions=directions)
        batches, accelerator = partial(picture_batch, processor), Accelerator(mixed_precision=precision)
        projector = draft.model.multi_modal_projector
        fit("projector", projector, losses, batches, alignment, Path(scratch, "checkpoints"), accelerator)
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
def small_language_model(target: LlavaForConditionalGeneration, directions: Tensor) -> LlamaForCausalLM:
    """Return a language model of two layers, whose word embeddings are the target's in ``directions``."""
    hidden = directions.shape[1]
    text = target.config.get_text_config()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=text.vocab_size,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=2,
            num_attention_heads=max(1, hidden // HEAD_SIZE),
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
