"""Drafts of the pair smol: jobs of ``distill``, on answers of the target itself (as in MASSV, arXiv 2505.10526)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration, LlavaProcessor

from specllava.core.config import DecodingConfig
from specllava.core.files import whole_directory
from specllava.distill.config import DistillConfig, LoopConfig
from specllava.distill.initial_draft import training_draft
from specllava.distill.job import Job
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.make_draft import init_draft
from specllava.distill.run import distil_files
from specllava.models.drafts.draft_classes import save, saved_beside
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.families.interface import tower_features
from specllava.smol.answers import read_answers, target_answers, write_answers
from specllava.smol.export import export_answers
from specllava.toyworld.corpus import draw_pixels
from specllava.toyworld.scene import sample_any_scene

SHIPPED: Final = "eagle3"
HEAD_SIZE: Final = 64  # of the draft VLM, as of its target
PICTURES: Final = 16  # of a batch
ALIGNMENT: Final = LoopConfig(400, 3e-3, warmup=20, weight_decay=0.0)


def _trainings() -> dict[str, DistillConfig]:
    vlm = DistillConfig(
        steps=700, batch=4, learning_rate=1e-3, warmup=30, kl_weight=1.0, precision="bf16", validate_every=250,
        checkpoint_every=50,
    )  # fmt: skip
    eagle = replace(
        vlm, drafter="eagle", steps=400, ce_weight=1.0, feature_weight=0.1, rollout=2, draft_heads=3,
        draft_intermediate=512,
    )  # fmt: skip
    eagle3 = replace(eagle, drafter="eagle3", steps=1000, rollout=4, draft_vocabulary=4000)
    return {SHIPPED: eagle3, "eagle": eagle, "vlm": vlm}


@dataclass(frozen=True, slots=True)
class DraftsRecipe:
    """What the drafts learn, and from how much.

    Args:
        scenes: about each of which the target answers two questions.
        hidden: hidden size of the draft VLM, a multiple of 64 above that.
        alignment: of the draft VLM's projector, before all of it learns.
        trainings: by the draft's name.
    """

    scenes: int = 1344
    hidden: int = 192
    alignment: LoopConfig = ALIGNMENT
    trainings: Mapping[str, DistillConfig] = field(default_factory=_trainings)
    validation: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))

    @classmethod
    def of(cls, names: Sequence[str]) -> DraftsRecipe:
        """Return the recipe of some of the drafts."""
        return cls(trainings={name: training for name, training in _trainings().items() if name in names})


def distil_drafts(output: Path, recipe: DraftsRecipe, tell: Callable[[str], None]) -> None:
    """Distil every draft, and write the weights of the shipped one's last step in bfloat16 to ``output / "draft"``.

    Args:
        output: directory of the run, with ``target``. A directory for each draft appears in it.
    """
    chats, target = output / "chats", output / "target"
    if not (chats / "data.json").exists():
        processor, model = _read_target(target)
        answers = output / "target-answers.jsonl"
        write_answers(partial(target_answers, model, processor), recipe.scenes, answers)
        export_answers(read_answers(answers), chats)
    for name, training in recipe.trainings.items():
        begin = None
        if training.drafter == "vlm":
            begin = fresh_draft(target, recipe.hidden, output / "vlm-fresh", training.precision, recipe.alignment)
        job = Job(
            target=str(target),
            data=chats / "data.json",
            images=chats / "images",
            output=output / name,
            draft=begin,
            dtype="bfloat16",
            training=training,
            decoding=recipe.validation,
        )
        distil_files(job, tell)
    if SHIPPED not in recipe.trainings or (output / "draft").exists():
        return
    draft = FeatureDraft.from_pretrained(output / SHIPPED / "last", dtype=torch.bfloat16)
    with whole_directory(output / "draft") as beside:
        draft.save_pretrained(beside)


def fresh_draft(target: Path, hidden: int, output: Path, precision: str, alignment: LoopConfig = ALIGNMENT) -> Path:
    """Make a draft VLM of a small language model at ``output``, unless it is there already; return ``output``.

    Its projector learns the target's image embeddings, in the directions that its word embeddings keep.

    Args:
        precision: of all training in this process.
    """
    if output.exists():
        return output
    processor, model = _read_target(target)
    model.float().requires_grad_(False)
    directions = principal_directions(model, hidden)
    with TemporaryDirectory() as scratch:
        language, made = Path(scratch, "language"), Path(scratch, "draft")
        small_language_model(model, directions).save_pretrained(language)
        processor.tokenizer.save_pretrained(language)
        init_draft(language, target, made)
        draft = training_draft(made, model)
        losses = partial(alignment_losses, target=model, directions=directions)
        batches, accelerator = Pictures(processor), Accelerator(mixed_precision=precision)
        projector = draft.model.multi_modal_projector
        fit("projector", projector, losses, batches, alignment, Path(scratch, "checkpoints"), accelerator)
        save(draft, saved_beside(draft, processor), output, torch.float32)
    return output


@dataclass(frozen=True)
class Pictures:
    """Batches by number: ``pixel_values [16, 3, h, w]`` of scenes."""

    processor: LlavaProcessor

    def __call__(self, number: int) -> Batch:
        scenes = [sample_any_scene(index) for index in range(number * PICTURES, (number + 1) * PICTURES)]
        return {"pixel_values": draw_pixels(self.processor.image_processor, scenes)}


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


def _read_target(directory: Path) -> tuple[LlavaProcessor, LlavaForConditionalGeneration]:
    target = LlavaForConditionalGeneration.from_pretrained(directory).eval()
    return LlavaProcessor.from_pretrained(directory), target
