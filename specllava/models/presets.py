"""Pairs with a name. No torch, so that they are listed at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from specllava.config import eagle2_tree
from specllava.files import cached, shipped
from specllava.models.options import DraftReading

if TYPE_CHECKING:
    from specllava.models.checkpoint import Source


ASSETS = shipped("assets")
NO_FIGURES: Final = "no figures are known"
FETCH_SMOL: Final = (
    "the language model of the pair smol is not on this machine: in a clone, python -m recipes.smol fetch"
    " (93 or 269 MB to download, 277 MB on disk)"
)
Tree = Mapping[str, Any]  # options of decoding by the names of DecodingConfig


@dataclass(frozen=True, slots=True)
class Preset:
    """The models of a named pair.

    Args:
        target, draft: a directory, or an id of the hub; no draft where none is published.
        reading: of a draft that reads the target's states, where its files leave it open.
        measured: what others measured with a published draft, greedily, and who they are; nothing of it was repeated
            here.
        tree: options of decoding with which they measured; what a user asks for wins.
        licence: of a published draft, as far as known.
        family: of both models, where the draft is a smaller one of the target's family: their model type, or a name of
            their own where other tokens share it.
        fetched: how the target's directory comes to be, if it does not ship; one line.
        download: GB of both models' files on the hub, about; 0 of one that ships.
        memory: GB that it takes in bfloat16, with caches for 4,096 tokens.
    """

    target: Source
    draft: Source | None = None
    reading: DraftReading = field(default_factory=DraftReading)
    measured: str = ""
    tree: Tree = field(default_factory=dict)
    licence: str = ""
    family: str = ""
    fetched: str = ""
    download: float = 0.0
    memory: float = 0.0

    @property
    def local(self) -> bool:
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


def _figures(who: str, tokens: str, speed: str) -> str:
    return f"{who}: {tokens} tokens a pass, {speed} times as fast"


TOY: Final = ASSETS / "toy"
LLAVA: Final = "llava-hf/llava-1.5-7b-hf"
MMSPEC: Final = eagle2_tree(3, 8, 30)  # of ViSpec, and of MMSpec's runs but for MSD
TEXTS: Final = eagle2_tree(5, 10, 60)  # as EAGLE's authors' evaluation runs it on 7B and 8B
_published = partial(Preset, licence="weights: licence not known")
_family = partial(Preset, licence="weights: Apache-2.0", measured=NO_FIGURES)
# Models that others publish. Sources of the figures: a third party's run of MMSpec's benchmark (arXiv 2603.14989; 600
# prompts, at most 1,024 tokens); the authors of ViSpec (arXiv 2509.15235); EAGLE-2's and EAGLE-3's authors on texts
# (arXiv 2406.16858, 2503.01840: the mean of all tasks); AngelSlim's documentation.
PUBLISHED: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "llava-1.5-7b": Preset(LLAVA, download=14.1, memory=16.3),
        "llava-1.5-7b-msd": _published(
            LLAVA, "Cloudriver/MSD-LLaVA1.5-7B", DraftReading("msd"), _figures("MMSpec", "4.5", "2.11"),
            eagle2_tree(5, 10, 59), download=14.9, memory=16.9,
        ),
        "llava-1.5-7b-vispec": _published(
            LLAVA, "Cloudriver/ViSpec-LLaVA1.5-7B", DraftReading("vispec"), _figures("MMSpec", "4.0", "2.23"), MMSPEC,
            download=15.0, memory=17.1,
        ),
        "llava-1.5-7b-eagle": _published(
            LLAVA, "Cloudriver/EAGLE-LLaVA-1.5-7B", measured=_figures("MMSpec", "1.85", "1.14"), tree=MMSPEC,
            download=14.9, memory=16.9,
        ),
        "llava-1.6-vicuna-7b-vispec": _published(
            "llava-hf/llava-v1.6-vicuna-7b-hf", "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf", DraftReading("vispec"),
            _figures("authors", "4.0", "2.58"), MMSPEC, download=15.0, memory=17.1,
        ),
        "qwen2.5-vl-7b-vispec": _published(
            "Qwen/Qwen2.5-VL-7B-Instruct", "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct", DraftReading("vispec"),
            _figures("authors", "3.2", "1.80"), MMSPEC, download=18.4, memory=17.6,
        ),
        "vicuna-7b-v1.3-eagle": _published(  # the branch with safetensors
            "lmsys/vicuna-7b-v1.3@refs/pr/4", "yuhuili/EAGLE-Vicuna-7B-v1.3",
            measured=_figures("authors", "4.7", "3.39"), tree=TEXTS, download=14.2, memory=16.2,
        ),
        "llama-3.1-8b-eagle3": Preset(
            "meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            measured=_figures("authors", "6.2", "4.44"), tree=TEXTS,
            licence="the target: Llama 3.1's terms (HF_TOKEN)", download=16.9, memory=17.6,
        ),
        "qwen3-8b-eagle3": _published(
            "Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", measured=_figures("authors", "2.0", "1.70"),
            download=17.2, memory=17.9,
        ),
        "smolvlm2-2.2b-256m": _family(
            "HuggingFaceTB/SmolVLM2-2.2B-Instruct", "HuggingFaceTB/SmolVLM2-256M-Video-Instruct", family="smolvlm",
            download=10.0, memory=5.9,
        ),
        "smollm2-1.7b-135m": _family(
            "HuggingFaceTB/SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", family="smollm2",
            download=3.7, memory=4.6,
        ),
    }
)  # fmt: skip


def presets() -> dict[str, Preset]:
    """Return pairs by name: those that ship with the project, and :data:`PUBLISHED` ones."""
    smol = Preset(
        cached("smol") / "target",
        ASSETS / "smol" / "draft",
        licence="language model: Apache-2.0, by recipes.smol fetch",
        fetched=FETCH_SMOL,
    )
    toy = {
        "toy": Preset(TOY / "target", TOY / "draft"),
        "toy-before": Preset(TOY / "target", TOY / "draft-before"),
        "toy-eagle": Preset(TOY / "target", TOY / "eagle"),
        "toy-eagle-compressed": Preset(TOY / "target", TOY / "eagle-compressed"),
    }
    return {**toy, "smol": smol, **PUBLISHED}


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
    """Say how a target of a model type gets a draft; ``made`` is what can be done for any of its family."""
    known = presets()
    if named := [name for name, preset in known.items() if str(preset.target) == target and preset.draft]:
        return f"take --preset {' or '.join(named)}, or {made}"
    smaller = next((preset.draft for preset in known.values() if preset.family == family), None)
    return f"take a smaller model of its family, such as --draft {smaller}, or {made}" if smaller else made
