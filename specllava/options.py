"""Options that commands share, and what they do with them. No torch until a pair is loaded."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from specllava.config import DecodingConfig

if TYPE_CHECKING:
    from specllava.pair import Pair

DTypeName = Literal["auto", "float32", "float64", "bfloat16", "float16"]
Options = Annotated[DecodingConfig, tyro.conf.OmitArgPrefixes]


@dataclass(frozen=True)
class Running:
    """Which pair, and on what."""

    preset: str = "toy"
    """Name of a shipped pair: toy, or toy-before (the draft as it was before distillation)."""

    device: str = "auto"
    """cpu, cuda or cuda:N; auto takes the GPU if there is one."""

    dtype: DTypeName = "auto"
    """Precision; auto is float32 on a CPU and bfloat16 elsewhere."""


Place = Annotated[Running, tyro.conf.OmitArgPrefixes]


def load(running: Running) -> Pair:
    """The pair that the options name. Progress bars are for people: a log or a pipe gets none."""
    from transformers.utils.logging import disable_progress_bar

    from specllava.pair import Pair

    if not sys.stderr.isatty():
        disable_progress_bar()
    return Pair.from_preset(running.preset, running.device, running.dtype)


def write_json(path: Path | None, data: dict[str, Any]) -> None:
    """Write a result where the user asked for it, if anywhere."""
    if path:
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
