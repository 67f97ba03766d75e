"""Families of targets, by their configurations; ``docs/models.md`` adds one."""

from __future__ import annotations

from typing import Final

from transformers import PretrainedConfig

from specllava.models.checkpoints.language_model import LANGUAGE_MODELS
from specllava.models.families.interface import Family, SharedTower
from specllava.models.families.llava import Llava, LlavaNext
from specllava.models.families.plain import Gemma3, Idefics3, InternVL, LlavaOnevision, SmolVLM
from specllava.models.families.qwen_vl import Qwen2VL, Qwen3VL, Qwen3VLMoe, Qwen25VL
from specllava.models.families.text import TextFamily

FAMILIES: Final[tuple[Family, ...]] = (
    Llava(),
    LlavaNext(),
    LlavaOnevision(),
    InternVL(),
    Idefics3(),
    SmolVLM(),
    Qwen2VL(),
    Qwen25VL(),
    Qwen3VL(),
    Qwen3VLMoe(),
    Gemma3(),
)


def find_family(config: PretrainedConfig) -> Family | None:
    """Return the family of a vision-language model by its configuration's ``model_type``; ``None`` for any other."""
    return next((family for family in FAMILIES if family.name == config.model_type), None)


def family_of(config: PretrainedConfig) -> Family:
    """Return the family of a target by its ``model_type``; language models have families of their own.

    Raises:
        ValueError: none that is known here.
    """
    if family := find_family(config):
        return family
    if config.model_type in LANGUAGE_MODELS:
        return TextFamily(config)
    raise ValueError(
        f"models of type {config.model_type} are not known as targets: {known_families()} are, and without pictures"
        f" {', '.join(LANGUAGE_MODELS)}"
    )


def features_family(config: PretrainedConfig) -> Family:
    """Return the family whose features a model reads: its own, or its target's if it reads slot embeddings.

    Raises:
        ValueError: none that is known here.
    """
    name = getattr(config, "target_type", config.model_type)
    return next((family for family in FAMILIES if family.name == name), None) or family_of(config)


def shared_tower_of(config: PretrainedConfig) -> SharedTower:
    """Return the family of a model whose tower's states a draft reads.

    Raises:
        ValueError: none that is known here, or one of which a draft reads slot embeddings.
    """
    family = family_of(config)
    if isinstance(family, SharedTower):
        return family
    shared = " and ".join(one.name for one in FAMILIES if isinstance(one, SharedTower))
    raise ValueError(
        f"no draft reads a {config.model_type}'s tower, as those of {shared} do: make one of a language model"
    )


def known_families() -> str:
    """Return the names of all families that see for a message."""
    *names, last = (family.name for family in FAMILIES)
    return f"{', '.join(names)} and {last}"
