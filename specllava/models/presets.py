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
NO_FIGURES: Final = "no figures are known"


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        before: the draft as it was before distillation, if it is there too.
        draft_format: of a draft that reads the target's states, where its keys do not tell.
        licence: of a published draft, as far as known.
        family: model type of both models, where the draft is a smaller model of the target's family.
        measured: what others measured with a published draft, greedily, and who they are; nothing of it was repeated
            here.
    """

    target: Source
    draft: Source | None = None
    before: Source | None = None
    draft_format: DraftFormat | None = None
    licence: str = ""
    family: str = ""
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
    tokens), of ViSpec's and MSD's authors (arXiv 2509.15235, 2505.14260), of AngelSlim's documentation (chains of 4),
    and of TensorRT Edge-LLM's performance page (the slowest with INT4 weights, the fastest with NVFP4).
    """
    llava, small, large = "llava-hf/llava-{}-hf", "llava-hf/llava-1.5-7b-hf", "llava-hf/llava-1.5-13b-hf"
    next_small, next_large = llava.format("v1.6-vicuna-7b"), llava.format("v1.6-vicuna-13b")
    qwen2, qwen3 = "Qwen/Qwen2.5-VL-{}-Instruct", "Qwen/Qwen3-VL-{}-Instruct"
    vispec, angel = "JLKang/ViSpec-{}", "AngelSlim/Qwen3-VL-{}-Instruct_eagle3"
    rows = (
        ("llava-1.5-7b-msd", small, "Cloudriver/MSD-LLaVA1.5-7B", _figures("MMSpec", "4.5", "2.11")),
        ("llava-1.5-7b-vispec", small, "Cloudriver/ViSpec-LLaVA1.5-7B", _figures("MMSpec", "4.0", "2.23")),
        ("llava-1.5-7b-eagle", small, "Cloudriver/EAGLE-LLaVA-1.5-7B", _figures("MMSpec", "1.85", "1.14")),
        ("llava-1.5-7b-eagle3", small, "Cloudriver/EAGLE3-LLaVA1.5-7B", _figures("MMSpec", "1.0", "0.66")),
        ("llava-1.5-13b-msd", large, "lucylyn/MSD-LLaVA1.5-13B", "authors: up to 2.46 times as fast"),
        ("llava-1.6-vicuna-7b-vispec", next_small, vispec.format("llava-v1.6-vicuna-7b-hf"),
         _figures("authors", "4.0", "2.58")),
        ("llava-1.6-vicuna-13b-vispec", next_large, vispec.format("llava-v1.6-vicuna-13b-hf"),
         _figures("authors", "3.9", "2.38")),
        ("qwen2.5-vl-3b-vispec", qwen2.format("3B"), vispec.format("Qwen2.5-VL-3B-Instruct"),
         _figures("authors", "3.2", "1.87")),
        ("qwen2.5-vl-7b-vispec", qwen2.format("7B"), vispec.format("Qwen2.5-VL-7B-Instruct"),
         _figures("authors", "3.2", "1.80")),
        ("qwen2.5-vl-7b-msd", qwen2.format("7B"), "Cloudriver/MSD-Qwen2.5-VL-7B-Instruct",
         _figures("MMSpec", "3.6", "1.67")),
        ("qwen2.5-vl-7b-eagle3", qwen2.format("7B"), "Rayzl/qwen2.5-vl-7b-eagle3-sgl",
         _figures("TensorRT Edge-LLM", "3.7-3.8", "1.1 to 2.6")),
        ("qwen3-vl-2b-eagle3", qwen3.format("2B"), angel.format("2B"),
         "authors: 2.6 (MMMU) and 2.3 (MMStar) tokens a pass, chains of 4"),
        ("qwen3-vl-4b-eagle3", qwen3.format("4B"), angel.format("4B"),
         "authors: 2.1 (MMMU) and 2.1 (MMStar) tokens a pass, chains of 4"),
        ("qwen3-vl-30b-a3b-eagle3", qwen3.format("30B-A3B"), angel.format("30B-A3B"),
         "authors: 1.8 (MMMU) and 1.9 (MMStar) tokens a pass, chains of 4"),
    )  # fmt: skip
    formats: dict[str, DraftFormat] = {"msd": "msd", "vispec": "vispec"}
    return {
        name: Preset(
            target, draft, draft_format=formats.get(name.rsplit("-", 1)[1]), licence=LICENCE_UNKNOWN, measured=measured
        )
        for name, target, draft, measured in rows
    }


def _figures(who: str, tokens: str, speed: str) -> str:
    return f"{who}: {tokens} tokens a pass, {speed} times as fast"


def _relatives() -> dict[str, Preset]:
    """Return pairs of one family's small and large models, each with its own tower; no figures of theirs are known."""
    qwen2, qwen3 = "Qwen/Qwen2.5-VL-{}-Instruct", "Qwen/Qwen3-VL-{}-Instruct"
    smol, smol_draft = "HuggingFaceTB/SmolVLM2-{}-Instruct", "HuggingFaceTB/SmolVLM2-{}-Video-Instruct"
    intern, gemma, one = "OpenGVLab/InternVL3-{}-hf", "google/gemma-3-{}-it", "llava-hf/llava-onevision-qwen2-{}-ov-hf"
    apache, research = "weights: Apache-2.0", "the draft's weights: Qwen Research, no commercial use"
    terms = "weights: Gemma's terms, to be agreed to on the hub (HF_TOKEN)"
    families = (  # name, model type, id of a target, of a draft, sizes of targets, of drafts, licence
        ("smolvlm2", "smolvlm", smol, smol_draft, ("2.2B",), ("256M", "500M"), apache),
        ("qwen2.5-vl", "qwen2_5_vl", qwen2, qwen2, ("7B", "32B", "72B"), ("3B",), research),
        ("qwen3-vl", "qwen3_vl", qwen3, qwen3, ("8B", "32B"), ("2B",), apache),
        ("internvl3", "internvl", intern, intern, ("8B",), ("1B",), LICENCE_UNKNOWN),
        ("gemma-3", "gemma3", gemma, gemma, ("12b", "27b"), ("4b",), terms),
        ("onevision", "llava_onevision", one, one, ("7b", "72b"), ("0.5b",), LICENCE_UNKNOWN),
    )
    return {
        f"{name}-{large}-{small}".lower(): Preset(
            target.format(large), draft.format(small), licence=licence, measured=NO_FIGURES, family=family
        )
        for name, family, target, draft, targets, drafts, licence in families
        for large in targets
        for small in drafts
    }


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


def draft_hint(target: str, family: str) -> str:
    """Say how a target without a draft gets one.

    Args:
        target: id of the hub, or directory.
        family: its model type.
    """
    known = presets()
    made = 'make one with "specllava draft init" and name it with --draft'
    if named := [name for name, preset in known.items() if str(preset.target) == target and preset.draft]:
        return f"take --preset {' or '.join(named)}, or {made}"
    smaller = next((preset.draft for preset in known.values() if preset.family == family), None)
    return f"take a smaller model of its family, such as --draft {smaller}, or {made}" if smaller else made
