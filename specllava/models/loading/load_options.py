"""Options of loading a pair. No torch, so that the command line offers them at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from specllava.models.options import DraftReading

DTypeName = Literal["auto", "float32", "float64", "bfloat16", "float16"]
QuantizationName = Literal["none", "int8", "int4"]
PassesName = Literal["auto", "eager", "padded", "graphs"]


@dataclass(frozen=True, slots=True)
class LoadOptions(DraftReading):
    """Options of loading: device, precision, context, and how a draft is read that reads the target's states.

    Args:
        device: ``auto`` takes the GPU if there is one.
        dtype: ``auto`` is float32 on a CPU and bfloat16 elsewhere.
        device_map: let accelerate spread the target over all GPUs and the machine's memory.
        quantization: store the target's weights in fewer bits.
        chat_template: file of a template in place of the checkpoint's own.
        context: largest number of tokens of prompt and answer; without it as many as the target can hold, or fewer
            where there is no memory for all of them.

    Raises:
        ValueError: an unknown dtype.
    """

    device: str = "auto"
    dtype: DTypeName = "auto"
    device_map: bool = False
    quantization: QuantizationName = "none"
    chat_template: str | Path | None = None
    context: int | None = None

    @property
    def reading(self) -> DraftReading:
        return DraftReading(self.draft_format, self.draft_state_layers, self.draft_rope_theta)

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DTypeName):
            raise ValueError(f"unknown dtype {self.dtype!r}: choose one of {', '.join(get_args(DTypeName))}")
