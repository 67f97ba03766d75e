"""Families of targets, by their configurations; ``docs/models.md`` adds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.families.interface import Family, Features, ProcessedPrompt, SharedTower
from specllava.models.families.llava import Llava, LlavaNext
from specllava.models.families.plain import Gemma3, Idefics3, InternVL, LlavaOnevision, SmolVLM, TextFamily
from specllava.models.families.qwen_vl import Qwen2VL, Qwen3VL, Qwen3VLMoe, Qwen25VL
from specllava.models.language_model import LANGUAGE_MODELS

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


MEDIA: Final = (  # names of all families
    "pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw", "batch_num_images", "mm_token_type_ids",
    "token_type_ids",
)  # fmt: skip


def check_media(config: PretrainedConfig, processor: Any, input_ids: Tensor, media: Mapping[str, Tensor]) -> None:
    """Refuse arguments that are not those which the model's processor makes.

    Families derive token types from ``input_ids``. ``generate`` reads those that it is given, or none.

    Args:
        config: of the model.
        media: arguments by the names of ``forward``.

    Raises:
        ValueError: one is missing, or is not read, or token types differ; one line that names it.
    """
    family = family_of(config)
    types = family.prompt_arguments(config, input_ids)
    read = types.keys() & media.keys()
    if "pixel_values" in media:
        images = getattr(processor, "image_processor", None)
        read = types.keys() | {*MEDIA}.intersection(getattr(images, "model_input_names", ()))
    where = "with pixel_values" if "pixel_values" in media else "without pixel_values"
    for name in sorted(media.keys() ^ read):
        verb = "does not read" if name in media else "needs"
        raise ValueError(f"a {family.name} {verb} {name} {where}: give what its processor made")
    for name in types.keys() & media.keys():
        if media[name].shape != input_ids.shape or media[name].to(input_ids.device).ne(types[name]).any():
            raise ValueError(f"{name} must be 1 in image slots and 0 elsewhere: give what the processor made")


def encode_media(model: PreTrainedModel, input_ids: Tensor, media: Mapping[str, Tensor]) -> Features | None:
    """Return a model's features of the pictures, ``None`` if there are none.

    Args:
        media: arguments that the model's processor makes, on its device.

    Raises:
        ValueError: they are not of the same pictures; one line that names them.
    """
    if "pixel_values" not in media:
        return None
    family, pixels, pictures = family_of(model.config), media["pixel_values"], [dict(media)]
    if "pixel_attention_mask" not in media:  # with it, nothing tells apart whose tiles are whose: they are one picture
        sizes = media["image_sizes"].tolist() if "image_sizes" in media else [pixels.shape[-2:]] * len(pixels)
        inputs = {"input_ids": input_ids, **media}
        try:
            prompt = ProcessedPrompt(model.config, None, inputs, [(height, width) for height, width in sizes])
            pictures = family.pictures(prompt)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{', '.join(media)} do not fit each other: give what the processor made") from error
    return family.stack(family.encode(model, pictures))
