"""The drafts of the pair smol: each is one job of ``distill``, on the dialogues that the target learnt from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from specllava.core.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.distill.job import Job
from specllava.distill.run import distil_files
from specllava.smol.answers import read_answers
from specllava.smol.export import export_answers


def _training(drafter: Literal["eagle", "eagle3"], **options: Any) -> DistillConfig:
    return DistillConfig(
        drafter=drafter, steps=600, batch=8, learning_rate=1e-3, warmup=30, precision="bf16", rollout=4,
        draft_heads=3, draft_intermediate=512, validate_every=100, checkpoint_every=50, **options,
    )  # fmt: skip


DRAFTS: Final = {
    "eagle3": _training("eagle3", draft_vocabulary=4000),
    "eagle": _training("eagle", ce_weight=1.0, feature_weight=0.1),
}
VALIDATION: Final = DecodingConfig(max_new_tokens=64)


def distil_drafts(output: Path, tell: Callable[[str], None]) -> None:
    """Distil every draft of the recipe; one that is done stays.

    Args:
        output: directory of the run, with ``answers.jsonl`` and ``target``.
    """
    chats = output / "chats"
    if not (chats / "data.json").exists():
        export_answers(read_answers(output / "answers.jsonl"), chats)
    for name, training in DRAFTS.items():
        job = Job(
            target=str(output / "target"),
            data=chats / "data.json",
            images=chats / "images",
            output=output / name,
            training=training,
            decoding=VALIDATION,
        )
        distil_files(job, tell)
