"""Options of loading a target and a draft, and of SpecVLM's compressor (arXiv 2509.11815). No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

DraftFormat = Literal["eagle", "msd", "vispec", "eagle3"]


@dataclass(frozen=True, slots=True)
class DraftReading:
    """What a user or a preset knows of a published draft; ``None``: as its files have it."""

    draft_format: DraftFormat | None = None
    """Of a draft that reads the target's states, where its tensors do not determine it: msd has the names of eagle. A
    preset knows its draft's."""

    draft_state_layers: tuple[int, ...] | None = None
    """Hidden states of the target that such a draft was trained on, in place of those that its files name, such as
    0 1 2: 0 are the embeddings, then the output of each layer; -1 is the last, normed."""

    draft_rope_theta: float | None = None
    """Base of the rotary embeddings that such a draft was trained with, in place of its configuration's: some were with
    10000 whatever that says (docs/models.md)."""

    def over(self, known: DraftReading) -> DraftReading:
        """Return this reading, completed by ``known`` where it is silent."""
        return replace(known, **{name: one for name, one in asdict(self).items() if one is not None})

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

    Raises:
        ValueError: an unknown dtype.
    """

    device: str = "auto"
    """cpu, cuda or cuda:N; auto takes the GPU if there is one."""

    dtype: DTypeName = "auto"
    """Precision; auto is float32 on a CPU and bfloat16 elsewhere."""

    device_map: bool = False
    """Spread the target over all GPUs and the machine's memory, for one that does not fit on a GPU."""

    quantization: QuantizationName = "none"
    """Store the target's weights in fewer bits: int8 or int4 (bitsandbytes, on a GPU)."""

    chat_template: str | Path | None = None
    """File of a chat template (jinja), in place of the checkpoint's own."""

    context: int | None = None
    """Tokens that prompt and answer may have together, which the memory check counts caches for; without it as many as
    the target can hold and there is memory for."""

    @property
    def reading(self) -> DraftReading:
        return DraftReading(self.draft_format, self.draft_state_layers, self.draft_rope_theta)

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DTypeName):
            raise ValueError(f"unknown dtype {self.dtype!r}: choose one of {', '.join(get_args(DTypeName))}")


OperatorName = Literal["prune", "pool", "conv", "resampler", "text", "merge"]
CompressorKind = Literal[OperatorName, "gate"]
KINDS: Final[tuple[CompressorKind, ...]] = (*get_args(OperatorName), "gate")


@dataclass(frozen=True, slots=True)
class CompressorConfig:
    """What becomes of one picture's run of image slots.

    A ratio that does not divide the slots keeps one entry more: 64 slots at 20 give 4, 576 give 29, 2,880 give 144.

    Args:
        kind: one operator for every prompt, or ``gate``, which chooses one of ``branches`` by the question.
        prune_ratio, pool_ratio, conv_ratio, merge_ratio: slots for each entry that is kept.
        queries: entries that the resampler makes of a picture.
        branches: operators between which the gate chooses.
        temperature: of the gate's Gumbel-Softmax in training.

    Raises:
        ValueError: a kind that is not known, or a number outside its bounds; one line.
    """

    kind: CompressorKind = "gate"
    prune_ratio: int = 20
    pool_ratio: int = 20
    conv_ratio: int = 3
    queries: int = 2
    branches: tuple[OperatorName, ...] = ("prune", "pool", "conv", "resampler", "text")
    temperature: float = 0.5
    merge_ratio: int = 20

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown compressor {self.kind!r}: choose one of {', '.join(KINDS)}")
        for name in ("prune_ratio", "pool_ratio", "conv_ratio", "merge_ratio"):
            if not getattr(self, name) >= 2:
                raise ValueError(f"the compressor's {name} is {getattr(self, name)}: it is 2 or more")
        if self.queries < 1 or not self.temperature > 0:
            raise ValueError(f"the compressor has {self.queries} queries and temperature {self.temperature}: both > 0")
        if len(self.branches) < 2 or len({*self.branches}) < len(self.branches):
            raise ValueError(f"the compressor's gate needs two or more different branches, not {list(self.branches)}")
        if unknown := {*self.branches} - {*get_args(OperatorName)}:
            raise ValueError(f"the compressor's gate has branches that no operator is called: {', '.join(unknown)}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> CompressorConfig:
        """Read the options as a model's configuration has them.

        Raises:
            ValueError: an option that is not known, and as above.
        """
        if unknown := sorted({*settings} - {one.name for one in fields(cls)}):
            raise ValueError(f"the compressor has no option {unknown[0]}")
        branches = {"branches": tuple(settings["branches"])} if "branches" in settings else {}
        return cls(**{**settings, **branches})

    def settings(self) -> dict[str, Any]:
        """Return the options as JSON data for a model's configuration."""
        return {**asdict(self), "branches": list(self.branches)}
