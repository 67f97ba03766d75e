"""Pairs with a name. No torch, so that they are listed at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specllava.core.files import shipped
from specllava.core.growth.rules.topk import eagle2_tree
from specllava.models.drafts.draft_reading import DraftReading

if TYPE_CHECKING:
    from specllava.models.checkpoints.checkpoint import Source

ASSETS = shipped("assets")
LICENCE_UNKNOWN: Final = "weights: licence not known"
LICENCES: Final = {"taobao-mnn/Qwen3-VL-2B-Instruct-Eagle3": "weights: Apache-2.0 by its card"}
NO_FIGURES: Final = "no figures are known"
Tree = Mapping[str, Any]  # options of decoding by the names of DecodingConfig


def chain(guesses: int) -> Tree:
    """Return the options of a chain that never stops early."""
    return {"rule": "chain", "depth": guesses, "nodes": guesses, "min_log_prob": -50.0}


MSD: Final = eagle2_tree(5, 10, 59)
VISPEC: Final = eagle2_tree(3, 8, 30)  # and of MMSpec's runs but for MSD
CHAIN: Final = chain(4)
FIRST: Final = (0, 1, 2)  # hidden states that MMSpec trained its EAGLE-3 drafts on
OLD_THETA: Final = 10_000.0  # of SpecForge until July 2026 for drafts with mrope_section, whatever rope_theta said


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        before: the draft as it was before distillation, if it is there too.
        reading: of a draft that reads the target's states, where its files do not tell.
        licence: of a published draft, as far as known.
        family: model type of both models, where the draft is a smaller model of the target's family.
        measured: what others measured with a published draft, greedily, and who they are; nothing of it was repeated
            here.
        tree: options of decoding with which they measured; what a user asks for wins.
    """

    target: Source
    draft: Source | None = None
    before: Source | None = None
    reading: DraftReading = field(default_factory=DraftReading)
    licence: str = ""
    family: str = ""
    measured: str = ""
    tree: Tree = field(default_factory=dict)

    @property
    def shipped(self) -> bool:
        """Whether it comes with the project, and loads without a network."""
        return isinstance(self.target, Path)

    def chosen(self, draft: Source | None, asked: DraftReading) -> tuple[Source | None, DraftReading]:
        """Return the draft to load and how it is read: as asked for, else its own. Another draft's is not known."""
        return (self.draft, asked.over(self.reading)) if draft is None else (draft, asked)


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
    of TensorRT Edge-LLM's performance page (the slowest with INT4 weights, the fastest with NVFP4), and of a card.
    """
    return {**_for_llava(), **_for_qwen()}


def _for_llava() -> dict[str, Preset]:
    llava, vispec = "llava-hf/llava-{}-hf", "JLKang/ViSpec-llava-{}-hf"
    small, large = llava.format("1.5-7b"), llava.format("1.5-13b")
    return {
        "llava-1.5-7b-msd": _reading(
            small, "Cloudriver/MSD-LLaVA1.5-7B", _figures("MMSpec", "4.5", "2.11"), MSD, draft_format="msd"
        ),
        "llava-1.5-7b-msd-lucylyn": _reading(
            small, "lucylyn/MSD-LLaVA1.5-7B", "authors: up to 2.29 times as fast", MSD, draft_format="msd"
        ),
        "llava-1.5-7b-vispec": _reading(
            small, "Cloudriver/ViSpec-LLaVA1.5-7B", _figures("MMSpec", "4.0", "2.23"), VISPEC, draft_format="vispec"
        ),
        "llava-1.5-7b-vispec-jlkang": _reading(
            small, vispec.format("1.5-7b"), f"authors: {NO_FIGURES}", VISPEC, draft_format="vispec"
        ),
        "llava-1.5-7b-eagle": _reading(
            small, "Cloudriver/EAGLE-LLaVA-1.5-7B", _figures("MMSpec", "1.85", "1.14"), VISPEC
        ),
        "llava-1.5-7b-eagle3": _reading(
            small, "Cloudriver/EAGLE3-LLaVA1.5-7B", _figures("MMSpec", "1.0", "0.66"), VISPEC, draft_state_layers=FIRST
        ),
        "llava-1.5-13b-msd": _reading(
            large, "lucylyn/MSD-LLaVA1.5-13B", "authors: up to 2.46 times as fast", MSD, draft_format="msd"
        ),
        "llava-1.6-vicuna-7b-vispec": _reading(
            llava.format("v1.6-vicuna-7b"), vispec.format("v1.6-vicuna-7b"), _figures("authors", "4.0", "2.58"), VISPEC,
            draft_format="vispec",
        ),
        "llava-1.6-vicuna-13b-vispec": _reading(
            llava.format("v1.6-vicuna-13b"), vispec.format("v1.6-vicuna-13b"), _figures("authors", "3.9", "2.38"),
            VISPEC, draft_format="vispec",
        ),
    }  # fmt: skip


def _for_qwen() -> dict[str, Preset]:
    qwen2, qwen3 = "Qwen/Qwen2.5-VL-{}-Instruct", "Qwen/Qwen3-VL-{}-Instruct"
    mmspec = "Cloudriver/{}-Qwen2.5-VL-7B-Instruct"
    vispec, angel = "JLKang/ViSpec-Qwen2.5-VL-{}-Instruct", "AngelSlim/Qwen3-VL-{}-Instruct_eagle3"
    mnn, seven, unseen = "taobao-mnn/Qwen3-VL-{}-Instruct-Eagle3", qwen2.format("7B"), "its configuration was not seen"
    two, four = qwen3.format("2B"), qwen3.format("4B")
    return {
        "qwen2-vl-7b-msd": _reading(
            "Qwen/Qwen2-VL-7B-Instruct", "lucylyn/MSD-Qwen2VL-7B-Instruct", f"authors: {NO_FIGURES}", MSD,
            draft_format="msd",
        ),
        "qwen2.5-vl-3b-vispec": _reading(
            qwen2.format("3B"), vispec.format("3B"), _figures("authors", "3.2", "1.87"), VISPEC, draft_format="vispec"
        ),
        "qwen2.5-vl-7b-vispec": _reading(
            seven, vispec.format("7B"), _figures("authors", "3.2", "1.80"), VISPEC, draft_format="vispec"
        ),
        "qwen2.5-vl-7b-vispec-mmspec": _reading(
            seven, mmspec.format("ViSpec"), _figures("MMSpec", "3.3", "1.38"), VISPEC, draft_format="vispec"
        ),
        "qwen2.5-vl-7b-msd": _reading(
            seven, mmspec.format("MSD"), _figures("MMSpec", "3.6", "1.67"), MSD, draft_format="msd"
        ),
        "qwen2.5-vl-7b-eagle": _reading(seven, mmspec.format("EAGLE"), _figures("MMSpec", "3.2", "1.57"), VISPEC),
        "qwen2.5-vl-7b-eagle3": _reading(
            seven, "Rayzl/qwen2.5-vl-7b-eagle3-sgl", _figures("TensorRT Edge-LLM", "3.7-3.8", "1.1 to 2.6"),
            draft_rope_theta=OLD_THETA,
        ),
        "qwen2.5-vl-7b-eagle3-mmspec": _reading(
            seven, mmspec.format("EAGLE3"), _figures("MMSpec", "1.1", "0.69"), VISPEC, draft_state_layers=FIRST
        ),
        "qwen3-vl-2b-eagle3": _reading(
            two, angel.format("2B"), "authors: 2.6 (MMMU) and 2.3 (MMStar) tokens a pass, chains of 4", CHAIN
        ),
        "qwen3-vl-2b-eagle3-mnn": _reading(two, mnn.format("2B"), f"authors: 1.9 to 2.0 on text; {unseen}"),
        "qwen3-vl-4b-eagle3": _reading(
            four, angel.format("4B"), "authors: 2.1 (MMMU) and 2.1 (MMStar) tokens a pass, chains of 4", CHAIN
        ),
        "qwen3-vl-8b-eagle3": _reading(
            qwen3.format("8B"), mnn.format("8B"), f"authors: {NO_FIGURES}; {unseen}"
        ),
        "qwen3-vl-30b-a3b-eagle3": _reading(
            qwen3.format("30B-A3B"), angel.format("30B-A3B"),
            f"authors: 1.8 and 1.9 tokens a pass; {unseen}", CHAIN,
        ),
    }  # fmt: skip


def _reading(target: str, draft: str, measured: str, tree: Tree | None = None, **known: Any) -> Preset:
    """Return a pair whose draft reads the target's states; ``known`` are fields of :class:`DraftReading`."""
    licence = LICENCES.get(draft, LICENCE_UNKNOWN)
    return Preset(target, draft, reading=DraftReading(**known), licence=licence, measured=measured, tree=tree or {})


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
