"""The draft of the pair smol: a job of ``distill``, on answers of the target itself (as in MASSV, arXiv 2505.10526)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from recipes.smol.answers import read_answers, target_answers, write_answers
from recipes.smol.export import export_answers
from specllava.config import DecodingConfig
from specllava.distill.config import DistillConfig, Job
from specllava.distill.train import distil_files
from specllava.files import whole_directory
from specllava.models.drafts.eagle import FeatureDraft


def _training() -> DistillConfig:
    return DistillConfig(
        drafter="eagle3", steps=1000, batch=4, learning_rate=1e-3, warmup=30, ce_weight=1.0, feature_weight=0.1,
        rollout=4, draft_heads=3, draft_intermediate=512, draft_vocabulary=4000, kl_weight=1.0, precision="bf16",
        validate_every=250, checkpoint_every=50,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DraftRecipe:
    """What the draft learns, and from how much.

    Args:
        scenes: about each of which the target answers two questions.
    """

    scenes: int = 1344
    training: DistillConfig = field(default_factory=_training)
    validation: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))


def distil_draft(output: Path, recipe: DraftRecipe, notify: Callable[[str], None]) -> None:
    """Distil the draft, and write the weights of its last step in bfloat16 to ``output / "draft"``.

    Args:
        output: directory of the run, with ``target``.
    """
    chats, target, distilled = output / "chats", output / "target", output / "eagle3"
    if not (chats / "data.json").exists():
        processor, model = read_target(target)
        answers = output / "target-answers.jsonl"
        write_answers(partial(target_answers, model, processor), recipe.scenes, answers)
        export_answers(read_answers(answers), chats)
    distil_files(
        Job(
            target=str(target),
            data=chats / "data.json",
            images=chats / "images",
            output=distilled,
            draft=None,
            dtype="bfloat16",
            training=recipe.training,
            decoding=recipe.validation,
        ),
        notify,
    )
    if not (output / "draft").exists():
        draft = FeatureDraft.from_pretrained(distilled / "last", dtype=torch.bfloat16)
        with whole_directory(output / "draft") as beside:
            draft.save_pretrained(beside)


def read_target(directory: Path) -> tuple[LlavaProcessor, LlavaForConditionalGeneration]:
    """Return processor and model of a target that is not trained."""
    target = LlavaForConditionalGeneration.from_pretrained(directory).eval()
    return LlavaProcessor.from_pretrained(directory), target
