"""The job of a distillation, and the identity of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllava.core.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.models.checkpoints.checkpoint import Checkpoint
from specllava.models.loading.load_options import DTypeName


@dataclass(frozen=True, slots=True)
class Job:
    """Inputs, outputs and options of a distillation.

    Args:
        target: a directory, or an id of the hub.
        draft: to begin with; ``None`` for a new one that reads the target's states.
        data, images: rows in LLaVA's instruction format, and the directory that their image paths are relative to.
        features: directory for the pictures' features, if they are computed once and kept.
        context: tokens of prompt and answer; the target's maximum if not given.
        decoding: options of validation; its token limit also bounds the target's own answers.

    Raises:
        ValueError: no draft, and one that cannot be made here.
    """

    target: str
    draft: Path | None
    data: Path
    images: Path
    output: Path
    features: Path | None
    device: str
    dtype: DTypeName
    context: int | None
    training: DistillConfig
    decoding: DecodingConfig

    def __post_init__(self) -> None:
        if self.draft is None and self.training.drafter == "vlm":
            raise ValueError(
                "--draft is missing: name a directory (draft init makes one), or let --drafter eagle make a new one"
            )

    def identity(self, processes: int) -> dict[str, Any]:
        """Return everything that determines the result, as JSON data."""
        target = Checkpoint.at(self.target)
        given = {name: getattr(self, name) for name in ("draft", "data", "images")}
        paths: dict[str, Any] = {name: None if path is None else str(path.resolve()) for name, path in given.items()}
        paths["target"] = str(Path(target.name_or_path).resolve()) if target.local else target.name_or_path
        training = {k: v for k, v in asdict(self.training).items() if k not in ("tensorboard", "workers")}
        features = None if self.features is None else str(self.features.resolve())
        decoding: dict[str, Any] = {f"decoding.{name}": value for name, value in asdict(self.decoding).items()}
        if self.context is not None:
            decoding["context"] = self.context
        values = {**paths, "dtype": self.dtype, "features": features, "processes": processes, **training, **decoding}
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain
