"""Options of loading a target and a draft. No torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, get_args

DraftFormat = Literal["eagle", "msd", "vispec", "eagle3"]


@dataclass(frozen=True, slots=True)
class DraftReading:
    """What a user or a preset knows of a published draft; ``None``: as its files have it.

    Args:
        draft_format: where its keys leave it open.
        draft_state_layers: hidden states of the target that it was trained on, numbered as transformers does.
        draft_rope_theta: base of the rotary embeddings that it was trained with.
    """

    draft_format: DraftFormat | None = None
    draft_state_layers: tuple[int, ...] | None = None
    draft_rope_theta: float | None = None

    def over(self, known: DraftReading) -> DraftReading:
        """Return this reading, completed by ``known`` where it is silent."""
        pairs = zip(astuple(self), astuple(known), strict=True)
        return DraftReading(*(other if own is None else own for own, other in pairs))

    @property
    def options(self) -> str:
        """The options of the command line that ask for it."""
        layers = self.draft_state_layers
        given = {
            "--draft-format": self.draft_format,
            "--draft-state-layers": None if layers is None else " ".join(map(str, layers)),
            "--draft-rope-theta": None if self.draft_rope_theta is None else f"{self.draft_rope_theta:g}",
        }
        return " ".join(f"{name} {value}" for name, value in given.items() if value is not None)

    @property
    def suffix(self) -> str:
        """Suffix of the draft's name: how its files are read."""
        layers, theta = self.draft_state_layers, self.draft_rope_theta
        parts = [] if layers is None else [f"states {' '.join(map(str, layers))}"]
        parts += [] if theta is None else [f"rope base {theta:g}"]
        return f" ({', '.join(parts)})" if parts else ""


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
