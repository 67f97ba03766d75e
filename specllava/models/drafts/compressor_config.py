"""Options of the visual compressor on a draft's side (SpecVLM, arXiv 2509.11815): the only source of their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

OperatorName = Literal["prune", "pool", "conv", "resampler", "text", "merge"]
CompressorKind = Literal[OperatorName, "gate"]
KINDS: Final[tuple[CompressorKind, ...]] = (*get_args(OperatorName), "gate")
RETIRED: Final = frozenset({"weighted_ratio"})  # options of operators that are gone, which drafts on disk still name


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
        named = {name: value for name, value in settings.items() if name not in RETIRED}
        if unknown := sorted({*named} - {one.name for one in fields(cls)}):
            raise ValueError(f"the compressor has no option {unknown[0]}")
        branches = {"branches": tuple(named["branches"])} if "branches" in named else {}
        return cls(**{**named, **branches})

    def settings(self) -> dict[str, Any]:
        """Return the options as JSON data for a model's configuration."""
        return {**asdict(self), "branches": list(self.branches)}
