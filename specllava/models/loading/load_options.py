"""Options of loading a pair. No torch, so that the command line offers them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from specllava.models.drafts.draft_reading import DraftFormat, DraftReading

DTypeName = Literal["auto", "float32", "float64", "bfloat16", "float16"]
QuantizationName = Literal["none", "int8", "int4"]
PassesName = Literal["auto", "eager", "padded", "graphs"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of loading: device, precision and context.

    Args:
        device: ``auto`` takes the GPU if there is one.
        dtype: ``auto`` is float32 on a CPU and bfloat16 elsewhere.
        device_map: let accelerate spread the target over all GPUs and the machine's memory.
        quantization: store the target's weights in fewer bits.
        context: largest number of tokens of prompt and answer; without it as many as the target can hold, or fewer
            where there is no memory for all of them.
        draft_format, draft_state_layers, draft_rope_theta: of a draft that reads the target's states, as
            :class:`DraftReading` has them.
    """

    device: str = "auto"
    dtype: DTypeName = "auto"
    device_map: bool = False
    quantization: QuantizationName = "none"
    context: int | None = None
    draft_format: DraftFormat | None = None
    draft_state_layers: tuple[int, ...] | None = None
    draft_rope_theta: float | None = None

    @property
    def reading(self) -> DraftReading:
        return DraftReading(self.draft_format, self.draft_state_layers, self.draft_rope_theta)

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DTypeName):
            raise ValueError(f"unknown dtype {self.dtype!r}: choose one of {', '.join(get_args(DTypeName))}")
