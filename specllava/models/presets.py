"""Pairs with a name. No torch, so that they are listed at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specllava.shipped import shipped

if TYPE_CHECKING:
    from specllava.models.checkpoint import Source

ASSETS = shipped("assets")


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        before: the draft as it was before distillation, if it is there too.
    """

    target: Source
    draft: Source | None = None
    before: Source | None = None

    @property
    def shipped(self) -> bool:
        """Whether it comes with the project, and loads without a network."""
        return isinstance(self.target, Path)


def presets() -> dict[str, Preset]:
    """Return pairs by name: those that ship with the project, and targets that others publish."""
    toy = ASSETS / "toy"
    return {
        "toy": Preset(toy / "target", toy / "draft", before=toy / "draft-before"),
        "toy-before": Preset(toy / "target", toy / "draft-before"),
        "llava-1.5-7b": Preset("llava-hf/llava-1.5-7b-hf"),
        "llava-1.5-13b": Preset("llava-hf/llava-1.5-13b-hf"),
    }


def preset_named(name: str) -> Preset:
    """Return the preset of a name.

    Raises:
        ValueError: there is none.
    """
    known = presets()
    if name not in known:
        raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(known)}")
    return known[name]
