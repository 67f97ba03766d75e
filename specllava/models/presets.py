"""Pairs with a name. No torch, so that they are listed at once."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specllava.shipped import shipped

if TYPE_CHECKING:
    from specllava.models.checkpoint import Source
    from specllava.models.feature_config import DraftFormat

ASSETS = shipped("assets")
LICENCE_UNKNOWN: Final = "weights: licence not known"


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        before: the draft as it was before distillation, if it is there too.
        draft_format: of a draft that reads the target's states, where its keys do not tell.
        licence: of a published draft, as far as known.
        measured: what others measured with a published draft, greedily, and who they are; nothing of it was repeated
            here.
    """

    target: Source
    draft: Source | None = None
    before: Source | None = None
    draft_format: DraftFormat | None = None
    licence: str = ""
    measured: str = ""

    @property
    def shipped(self) -> bool:
        """Whether it comes with the project, and loads without a network."""
        return isinstance(self.target, Path)

    def chosen(
        self, draft: Source | None, draft_format: DraftFormat | None
    ) -> tuple[Source | None, DraftFormat | None]:
        """Return the draft to load and its format: those asked for, else its own. Another draft's is not known."""
        return (self.draft, draft_format or self.draft_format) if draft is None else (draft, draft_format)


def presets() -> dict[str, Preset]:
    """Return pairs by name: those that ship with the project, and models that others publish."""
    toy = ASSETS / "toy"
    return {
        "toy": Preset(toy / "target", toy / "draft", before=toy / "draft-before"),
        "toy-before": Preset(toy / "target", toy / "draft-before"),
        "toy-eagle": Preset(toy / "target", toy / "eagle"),
        "toy-eagle-compressed": Preset(toy / "target", toy / "eagle-compressed"),
        "llava-1.5-7b": Preset("llava-hf/llava-1.5-7b-hf"),
        "llava-1.5-13b": Preset("llava-hf/llava-1.5-13b-hf"),
        **_published(),
        **_relatives(),
    }


def _published() -> dict[str, Preset]:
    """Return pairs whose draft reads the target's states, as others publish them.

    The figures are those of a third party's run of MMSpec's benchmark (arXiv 2603.14989; 600 prompts, at most 1,024
    tokens) and of ViSpec's and MSD's authors (arXiv 2509.15235, 2505.14260).
    """
    target, draft = "llava-hf/llava-v1.6-vicuna-{}-hf", "JLKang/ViSpec-llava-v1.6-vicuna-{}-hf"
    small, large = "llava-hf/llava-1.5-7b-hf", "llava-hf/llava-1.5-13b-hf"
    return {
        "llava-1.5-7b-msd": _as_published(
            small, "Cloudriver/MSD-LLaVA1.5-7B", "MMSpec: 4.5 tokens a pass, 2.11 times as fast", "msd"
        ),
        "llava-1.5-7b-vispec": _as_published(
            small, "Cloudriver/ViSpec-LLaVA1.5-7B", "MMSpec: 4.0 tokens a pass, 2.23 times as fast", "vispec"
        ),
        "llava-1.5-7b-eagle": _as_published(
            small, "Cloudriver/EAGLE-LLaVA-1.5-7B", "MMSpec: 1.85 tokens a pass, 1.14 times as fast"
        ),
        "llava-1.5-7b-eagle3": _as_published(
            small, "Cloudriver/EAGLE3-LLaVA1.5-7B", "MMSpec: 1.0 tokens a pass, 0.66 times as fast"
        ),
        "llava-1.5-13b-msd": _as_published(
            large, "lucylyn/MSD-LLaVA1.5-13B", "authors: up to 2.46 times as fast", "msd"
        ),
        "llava-1.6-vicuna-7b-vispec": _as_published(
            target.format("7b"), draft.format("7b"), "authors: 4.0 tokens a pass, 2.58 times as fast", "vispec"
        ),
        "llava-1.6-vicuna-13b-vispec": _as_published(
            target.format("13b"), draft.format("13b"), "authors: 3.9 tokens a pass, 2.38 times as fast", "vispec"
        ),
    }


def _relatives() -> dict[str, Preset]:
    """Return pairs of one family's small and large models, each with its own tower; no figures of theirs are known."""
    smol, intern, one = "HuggingFaceTB/SmolVLM2-{}-Instruct", "OpenGVLab/InternVL3-{}-hf", "llava-hf/llava-onevision-{}"
    unknown = "no figures are known"
    apache = "weights: Apache-2.0"
    return {
        f"{target_name}-{size}": Preset(target, draft, licence=licence, measured=unknown)
        for target_name, size, target, draft, licence in (
            ("smolvlm2-2.2b", "256m", smol.format("2.2B"), smol.format("256M-Video"), apache),
            ("smolvlm2-2.2b", "500m", smol.format("2.2B"), smol.format("500M-Video"), apache),
            ("internvl3-8b", "1b", intern.format("8B"), intern.format("1B"), LICENCE_UNKNOWN),
            ("onevision-7b", "0.5b", one.format("qwen2-7b-ov-hf"), one.format("qwen2-0.5b-ov-hf"), LICENCE_UNKNOWN),
        )
    }


def _as_published(target: str, draft: str, measured: str, draft_format: DraftFormat | None = None) -> Preset:
    return Preset(target, draft, draft_format=draft_format, licence=LICENCE_UNKNOWN, measured=measured)


def preset_named(name: str) -> Preset:
    """Return the preset of a name.

    Raises:
        ValueError: there is none.
    """
    known = presets()
    if name not in known:
        near = ", ".join(get_close_matches(name, known, n=3, cutoff=0.3) or list(known)[:3])
        raise ValueError(f"unknown preset {name!r}: {near} or another of the {len(known)} that specllava presets lists")
    return known[name]
