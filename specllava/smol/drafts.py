"""The draft of the pair smol: one job of ``distill``, on the dialogues that the target learnt from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from specllava.core.config import DecodingConfig
from specllava.core.files import whole_directory
from specllava.distill.config import DistillConfig
from specllava.distill.job import Job
from specllava.distill.run import distil_files
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.smol.answers import read_answers
from specllava.smol.export import export_answers

NAME: Final = "eagle3"
TRAINING: Final = DistillConfig(
    drafter="eagle3", steps=600, batch=4, learning_rate=1e-3, warmup=30, precision="bf16", rollout=4, draft_heads=3,
    draft_intermediate=512, draft_vocabulary=4000, validate_every=100, checkpoint_every=50,
)  # fmt: skip
VALIDATION: Final = DecodingConfig(max_new_tokens=64)


def distil_draft(output: Path, tell: Callable[[str], None]) -> None:
    """Distil the draft, and write the weights of its last step in bfloat16 to ``output / "draft"``.

    Args:
        output: directory of the run, with ``answers.jsonl`` and ``target``.
    """
    chats = output / "chats"
    if not (chats / "data.json").exists():
        export_answers(read_answers(output / "answers.jsonl"), chats)
    job = Job(
        target=str(output / "target"),
        data=chats / "data.json",
        images=chats / "images",
        output=output / NAME,
        training=TRAINING,
        decoding=VALIDATION,
    )
    distil_files(job, tell)
    if (output / "draft").exists():
        return
    draft = FeatureDraft.from_pretrained(output / NAME / "last", dtype=torch.bfloat16)
    with whole_directory(output / "draft") as beside:
        draft.save_pretrained(beside)
