"""Pairs with a name. No torch, so that they are listed at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specllava.core.files import cached, shipped
from specllava.core.growth.rules.topk import eagle2_tree
from specllava.models.drafts.draft_reading import DraftReading

if TYPE_CHECKING:
    from specllava.models.checkpoints.checkpoint import Source

ASSETS = shipped("assets")
LICENCE_UNKNOWN: Final = "weights: licence not known"
LICENCES: Final = {
    "taobao-mnn/Qwen3-VL-2B-Instruct-Eagle3": "weights: Apache-2.0 by its card",
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": "the target: Llama 3.1's terms (HF_TOKEN)",
}
NO_FIGURES: Final = "no figures are known"
FETCH_SMOL: Final = (
    "the language model of the pair smol is not on this machine: in a clone, python -m recipes.smol fetch"
    " (93 MB download, 270 MB on disk)"
)
Tree = Mapping[str, Any]  # options of decoding by the names of DecodingConfig


@dataclass(frozen=True, slots=True)
class DraftKind:
    """How published drafts of one kind are read, and the options of decoding with which they were measured."""

    reading: DraftReading = field(default_factory=DraftReading)
    tree: Tree = field(default_factory=dict)


_MMSPEC: Final = eagle2_tree(3, 8, 30)  # of ViSpec, and of MMSpec's runs but for MSD
MSD: Final = DraftKind(DraftReading("msd"), eagle2_tree(5, 10, 59))
VISPEC: Final = DraftKind(DraftReading("vispec"), _MMSPEC)
EAGLE: Final = DraftKind(tree=_MMSPEC)
EAGLE_TEXT: Final = DraftKind(tree=eagle2_tree(5, 10, 60))  # as its authors' evaluation runs it on 7B and 8B
MMSPEC_EAGLE3: Final = DraftKind(DraftReading(draft_state_layers=(0, 1, 2)), _MMSPEC)  # the states that it trained on
CHAIN: Final = DraftKind(tree={"rule": "chain", "depth": 4, "nodes": 4, "min_log_prob": -50.0})  # never stops early
SPECFORGE: Final = DraftKind(DraftReading(draft_rope_theta=10_000.0))  # until July 2026, whatever rope_theta was
BY_FILES: Final = DraftKind()


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        before: the draft as it was before distillation, if it is there too.
        reading: of a draft that reads the target's states, where its files leave it open.
        licence: of a published draft, as far as known.
        family: of both models, where the draft is a smaller one of the target's family: their model type, or a name of
            their own where other tokens share it.
        measured: what others measured with a published draft, greedily, and who they are; nothing of it was repeated
            here.
        tree: options of decoding with which they measured; what a user asks for wins.
        fetched: how the target's directory comes to be, if it does not ship; one line.
    """

    target: Source
    draft: Source | None = None
    before: Source | None = None
    reading: DraftReading = field(default_factory=DraftReading)
    licence: str = ""
    family: str = ""
    measured: str = ""
    tree: Tree = field(default_factory=dict)
    fetched: str = ""

    @property
    def shipped(self) -> bool:
        """Whether its models are directories, and load without a network: with the project, or fetched before."""
        return isinstance(self.target, Path)

    @property
    def missing(self) -> str:
        """Why it cannot be loaded, if its target is to be fetched first; else ""."""
        return self.fetched if self.fetched and not Path(self.target, "config.json").is_file() else ""

    def chosen(self, draft: Source | None, asked: DraftReading) -> tuple[Source | None, DraftReading]:
        """Return the draft to load and how it is read: as asked for, else its own. Another draft's is not known.

        Raises:
            ValueError: the target is to be fetched first.
        """
        if self.missing:
            raise ValueError(self.missing)
        return (self.draft, asked.over(self.reading)) if draft is None else (draft, asked)


def presets() -> dict[str, Preset]:
    """Return pairs by name: those that ship with the project, and models that others publish."""
    toy, smol = ASSETS / "toy", cached("smol") / "target"
    return {
        "toy": Preset(toy / "target", toy / "draft", before=toy / "draft-before"),
        "toy-before": Preset(toy / "target", toy / "draft-before"),
        "toy-eagle": Preset(toy / "target", toy / "eagle"),
        "toy-eagle-compressed": Preset(toy / "target", toy / "eagle-compressed"),
        "smol": Preset(
            smol,
            ASSETS / "smol" / "draft",
            licence="language model: Apache-2.0, by recipes.smol fetch",
            fetched=FETCH_SMOL,
        ),
        "llava-1.5-7b": Preset("llava-hf/llava-1.5-7b-hf"),
        "llava-1.5-13b": Preset("llava-hf/llava-1.5-13b-hf"),
        **_published(),
        **_same_family(),
    }


def _published() -> dict[str, Preset]:
    """Return pairs whose draft reads the target's states, as others publish them.

    Sources of the figures: a third party's run of MMSpec's benchmark (arXiv 2603.14989; 600 prompts, at most 1,024
    tokens); the authors of ViSpec and MSD (arXiv 2509.15235, 2505.14260); AngelSlim's documentation (with pictures
    chains of 4); EAGLE-2's and EAGLE-3's authors on texts (arXiv 2406.16858, 2503.01840: the mean of all tasks);
    TensorRT Edge-LLM's performance page (the slowest with INT4 weights, the fastest with NVFP4); a card.
    """
    llava, qwen2, qwen3 = "llava-hf/llava-{}-hf", "Qwen/Qwen2.5-VL-{}-Instruct", "Qwen/Qwen3-VL-{}-Instruct"
    small, large, seven = llava.format("1.5-7b"), llava.format("1.5-13b"), qwen2.format("7B")
    next7, next13 = llava.format("v1.6-vicuna-7b"), llava.format("v1.6-vicuna-13b")
    vispec, mmspec = "JLKang/ViSpec-{}", "Cloudriver/{}-Qwen2.5-VL-7B-Instruct"
    angel, mnn = "AngelSlim/Qwen3-VL-{}-Instruct_eagle3", "taobao-mnn/Qwen3-VL-{}-Instruct-Eagle3"
    vicuna, llama = "lmsys/vicuna-7b-v1.3@refs/pr/4", "meta-llama/Llama-3.1-8B-Instruct"  # the former's safetensors
    none, unseen = f"authors: {NO_FIGURES}", "its configuration was not seen"
    chains = "authors: {} (MMMU) and {} (MMStar) tokens a pass, chains of 4"
    pairs = (
        ("llava-1.5-7b-msd", small, "Cloudriver/MSD-LLaVA1.5-7B", _figures("MMSpec", "4.5", "2.11"), MSD),
        ("llava-1.5-7b-msd-lucylyn", small, "lucylyn/MSD-LLaVA1.5-7B", "authors: up to 2.29 times as fast", MSD),
        ("llava-1.5-7b-vispec", small, "Cloudriver/ViSpec-LLaVA1.5-7B", _figures("MMSpec", "4.0", "2.23"), VISPEC),
        ("llava-1.5-7b-vispec-jlkang", small, vispec.format("llava-1.5-7b-hf"), none, VISPEC),
        ("llava-1.5-7b-eagle", small, "Cloudriver/EAGLE-LLaVA-1.5-7B", _figures("MMSpec", "1.85", "1.14"), EAGLE),
        ("llava-1.5-7b-eagle3", small, "Cloudriver/EAGLE3-LLaVA1.5-7B", _figures("MMSpec", "1.0", "0.66"),
         MMSPEC_EAGLE3),
        ("llava-1.5-13b-msd", large, "lucylyn/MSD-LLaVA1.5-13B", "authors: up to 2.46 times as fast", MSD),
        ("llava-1.6-vicuna-7b-vispec", next7, vispec.format("llava-v1.6-vicuna-7b-hf"),
         _figures("authors", "4.0", "2.58"), VISPEC),
        ("llava-1.6-vicuna-13b-vispec", next13, vispec.format("llava-v1.6-vicuna-13b-hf"),
         _figures("authors", "3.9", "2.38"), VISPEC),
        ("qwen2-vl-7b-msd", "Qwen/Qwen2-VL-7B-Instruct", "lucylyn/MSD-Qwen2VL-7B-Instruct", none, MSD),
        ("qwen2.5-vl-3b-vispec", qwen2.format("3B"), vispec.format("Qwen2.5-VL-3B-Instruct"),
         _figures("authors", "3.2", "1.87"), VISPEC),
        ("qwen2.5-vl-7b-vispec", seven, vispec.format("Qwen2.5-VL-7B-Instruct"), _figures("authors", "3.2", "1.80"),
         VISPEC),
        ("qwen2.5-vl-7b-vispec-mmspec", seven, mmspec.format("ViSpec"), _figures("MMSpec", "3.3", "1.38"), VISPEC),
        ("qwen2.5-vl-7b-msd", seven, mmspec.format("MSD"), _figures("MMSpec", "3.6", "1.67"), MSD),
        ("qwen2.5-vl-7b-eagle", seven, mmspec.format("EAGLE"), _figures("MMSpec", "3.2", "1.57"), EAGLE),
        ("qwen2.5-vl-7b-eagle3", seven, "Rayzl/qwen2.5-vl-7b-eagle3-sgl",
         _figures("TensorRT Edge-LLM", "3.7-3.8", "1.1 to 2.6"), SPECFORGE),
        ("qwen2.5-vl-7b-eagle3-mmspec", seven, mmspec.format("EAGLE3"), _figures("MMSpec", "1.1", "0.69"),
         MMSPEC_EAGLE3),
        ("qwen3-vl-2b-eagle3", qwen3.format("2B"), angel.format("2B"), chains.format("2.6", "2.3"), CHAIN),
        ("qwen3-vl-2b-eagle3-mnn", qwen3.format("2B"), mnn.format("2B"), f"authors: 1.9 to 2.0 on text; {unseen}",
         BY_FILES),
        ("qwen3-vl-4b-eagle3", qwen3.format("4B"), angel.format("4B"), chains.format("2.1", "2.1"), CHAIN),
        ("qwen3-vl-8b-eagle3", qwen3.format("8B"), mnn.format("8B"), f"{none}; {unseen}", BY_FILES),
        ("qwen3-vl-30b-a3b-eagle3", qwen3.format("30B-A3B"), angel.format("30B-A3B"),
         f"authors: 1.8 and 1.9 tokens a pass; {unseen}", CHAIN),
        ("vicuna-7b-v1.3-eagle", vicuna, "yuhuili/EAGLE-Vicuna-7B-v1.3", _figures("authors", "4.7", "3.39"),
         EAGLE_TEXT),
        ("llama-3.1-8b-eagle3", llama, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", _figures("authors", "6.2", "4.44"),
         EAGLE_TEXT),
        ("qwen3-8b-eagle3", "Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", _figures("authors", "2.0", "1.70"), BY_FILES),
    )  # fmt: skip
    return {
        name: Preset(
            target, draft, reading=kind.reading, licence=LICENCES.get(draft, LICENCE_UNKNOWN), measured=measured,
            tree=kind.tree,
        )
        for name, target, draft, measured, kind in pairs
    }  # fmt: skip


def _figures(who: str, tokens: str, speed: str) -> str:
    return f"{who}: {tokens} tokens a pass, {speed} times as fast"


def _same_family() -> dict[str, Preset]:
    """Return pairs of one family's small and large models; no figures of theirs are known."""
    qwen2, qwen3 = "Qwen/Qwen2.5-VL-{}-Instruct", "Qwen/Qwen3-VL-{}-Instruct"
    smol, smol_draft = "HuggingFaceTB/SmolVLM2-{}-Instruct", "HuggingFaceTB/SmolVLM2-{}-Video-Instruct"
    intern, gemma, one = "OpenGVLab/InternVL3-{}-hf", "google/gemma-3-{}-it", "llava-hf/llava-onevision-qwen2-{}-ov-hf"
    words, smallest = "Qwen/Qwen2.5-{}-Instruct", "HuggingFaceTB/SmolLM2-{}-Instruct"
    apache, research = "weights: Apache-2.0", "the draft's weights: Qwen Research, no commercial use"
    terms = "weights: Gemma's terms, to be agreed to on the hub (HF_TOKEN)"
    families = (  # name, model type, id of a target, of a draft, sizes of targets, of drafts, licence
        ("smolvlm2", "smolvlm", smol, smol_draft, ("2.2B",), ("256M", "500M"), apache),
        ("qwen2.5-vl", "qwen2_5_vl", qwen2, qwen2, ("7B", "32B", "72B"), ("3B",), research),
        ("qwen3-vl", "qwen3_vl", qwen3, qwen3, ("8B", "32B"), ("2B",), apache),
        ("internvl3", "internvl", intern, intern, ("8B",), ("1B",), LICENCE_UNKNOWN),
        ("gemma-3", "gemma3", gemma, gemma, ("12b", "27b"), ("4b",), terms),
        ("onevision", "llava_onevision", one, one, ("7b", "72b"), ("0.5b",), LICENCE_UNKNOWN),
        ("qwen2.5", "qwen2", words, words, ("7B",), ("0.5B",), apache),
        ("smollm2", "smollm2", smallest, smallest, ("1.7B",), ("135M",), apache),
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


def draft_hint(target: str, family: str, made: str) -> str:
    """Say how a target without a draft gets one.

    Args:
        target: id of the hub, or directory.
        family: its model type.
        made: what else can be done for models of its family.
    """
    known = presets()
    if named := [name for name, preset in known.items() if str(preset.target) == target and preset.draft]:
        return f"take --preset {' or '.join(named)}, or {made}"
    smaller = next((preset.draft for preset in known.values() if preset.family == family), None)
    return f"take a smaller model of its family, such as --draft {smaller}, or {made}" if smaller else made
