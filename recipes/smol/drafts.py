"""Drafts of the pair smol: jobs of ``distill``, on answers of the target itself (as in MASSV, arXiv 2505.10526)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from recipes.smol.answers import read_answers, target_answers, write_answers
from recipes.smol.draft_vlm import DraftVlmRecipe, fresh_draft, read_target
from recipes.smol.export import export_answers
from specllava.config import DecodingConfig
from specllava.distill.config import DistillConfig, Job
from specllava.distill.train import distil_files
from specllava.files import whole_directory
from specllava.models.drafts.eagle import FeatureDraft

SHIPPED: Final = "eagle3"


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
        fresh: the draft VLM before distillation.
        trainings: by the draft's name.
    """

    scenes: int = 1344
    fresh: DraftVlmRecipe = field(default_factory=DraftVlmRecipe)
    trainings: Mapping[str, DistillConfig] = field(default_factory=_trainings)
    validation: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))

    @classmethod
    def of(cls, names: Sequence[str]) -> DraftsRecipe:
        """Return the recipe of some of the drafts."""
        return cls(trainings={name: training for name, training in _trainings().items() if name in names})


def distil_drafts(output: Path, recipe: DraftsRecipe, notify: Callable[[str], None]) -> None:
    """Distil every draft, and write the weights of the shipped one's last step in bfloat16 to ``output / "draft"``.

    Args:
        output: directory of the run, with ``target``. A directory for each draft appears in it.
    """
    chats, target = output / "chats", output / "target"
    if not (chats / "data.json").exists():
        processor, model = read_target(target)
        answers = output / "target-answers.jsonl"
        write_answers(partial(target_answers, model, processor), recipe.scenes, answers)
        export_answers(read_answers(answers), chats)
    for name, training in recipe.trainings.items():
        begin = None
        if training.drafter == "vlm":
            begin = fresh_draft(target, output / "vlm-fresh", recipe.fresh, training.precision)
        distil_files(draft_job(output, target, output / name, begin, training, recipe.validation), notify)
    if SHIPPED not in recipe.trainings or (output / "draft").exists():
        return
    draft = FeatureDraft.from_pretrained(output / SHIPPED / "last", dtype=torch.bfloat16)
    with whole_directory(output / "draft") as beside:
        draft.save_pretrained(beside)


def draft_job(
    run: Path, target: Path, output: Path, draft: Path | None, training: DistillConfig, validation: DecodingConfig
) -> Job:
    """Return the job that distils a draft on the dialogues of a run."""
    return Job(
        target=str(target),
        data=run / "chats" / "data.json",
        images=run / "chats" / "images",
        output=output,
        draft=draft,
        dtype="bfloat16",
        training=training,
        decoding=validation,
    )
