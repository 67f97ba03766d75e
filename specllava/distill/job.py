"""The job of a distillation: its inputs, its output and its options. No torch.

The command line is made from these fields: the docstring under a field is its help text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from specllava.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.models.options import DTypeName


@dataclass(frozen=True, kw_only=True)
class Job:
    """One distillation, from files to files."""

    target: str
    """The target, of any family: an id of the hub, or a directory."""

    data: Path
    """Rows in LLaVA's instruction format: a JSON list, or a .jsonl."""

    images: Path
    """Directory in which the rows' image paths begin."""

    output: Path
    """Directory of the run: draft (the best by τ), last, report.json and curve.html appear in it."""

    draft: Path | None = None
    """Directory of the draft to begin with. --drafter eagle and eagle3 make a new one without it."""

    device: Literal["auto", "cpu"] = "auto"
    """cpu, or auto for what accelerate finds."""

    dtype: DTypeName = "auto"
    """Precision of the target; auto is float32 on a CPU and bfloat16 elsewhere. The draft learns in float32."""

    context: int | None = None
    """Tokens that prompt and answer may have together; without it as many as the target can hold."""

    training: DistillConfig = field(default_factory=DistillConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How validation drafts. Its token limit also bounds the target's own answers."""
