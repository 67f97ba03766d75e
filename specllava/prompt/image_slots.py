"""Vision features of a prompt, in the image slots of the model that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.tokens import slot_ids
from specllava.models.drafts.compressor import Compressor, Operator
from specllava.models.drafts.draft_vlm import SlotDraft
from specllava.models.families.family import features_family, shared_tower_of
from specllava.models.families.interface import Features

Label = int | str | None  # a token; in an image slot the picture's key, or None for a picture without one


def to_device(inputs: Mapping[str, Tensor], model: PreTrainedModel, device: torch.device) -> dict[str, Tensor]:
    """Move inputs to a device, pixels in the model's precision; times, which are vectors, keep their own."""
    return {
        name: one.to(device, model.dtype) if one.is_floating_point() and one.dim() > 1 else one.to(device)
        for name, one in inputs.items()
    }


def projector_weights(draft: PreTrainedModel) -> list[nn.Parameter]:
    """Return the weights by which a draft without a tower reads the target's features."""
    if isinstance(draft, SlotDraft):
        return list(draft.projector.parameters())
    return shared_tower_of(draft.config).projector(draft)


def num_image_tokens(model: PreTrainedModel, features: Features | None) -> list[int]:
    """Return the number of image slots that a model reads of each picture; a compressor leaves fewer."""
    if features is None:
        return []
    counts, compressor = features_family(model.config).num_image_tokens(model, features), compressor_of(model)
    return counts if compressor is None else [compressor.kept(count) for count in counts]


def compressor_of(model: PreTrainedModel) -> Operator | None:
    """Return the operator that a draft's projected pictures go through, if any."""
    compressor: Compressor | None = getattr(model, "compressor", None)
    return None if compressor is None else compressor.operator(compressor.names[0])


def slots_of(config: PretrainedConfig, input_ids: Tensor) -> Tensor:
    """Mark the tokens of image slots."""
    return torch.isin(input_ids, torch.tensor(slot_ids(config), dtype=input_ids.dtype, device=input_ids.device))


def prompt_labels(
    model: PreTrainedModel, ids: Sequence[int], features: Features | None, image_keys: Sequence[str]
) -> list[Label]:
    """Return the label of each token of a prompt: itself, or in an image slot its picture's key, if it has one."""
    counts, markers = num_image_tokens(model, features), slot_ids(model.config)
    keys = chain.from_iterable(repeat(key, count) for key, count in zip(image_keys, counts, strict=False))
    return [next(keys, None) if token in markers else token for token in ids]


def kept_slots(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Mark the tokens that a draft with a compressor reads: of each picture's slots as many as are left.

    Args:
        input_ids: ``[batch, length]``, with all slots of the pictures.

    Returns:
        Truth values ``[batch, length]``.
    """
    kept = torch.ones_like(input_ids, dtype=torch.bool)
    if features is None:
        return kept
    slots = slots_of(model.config, input_ids).nonzero()
    counts = features_family(model.config).num_image_tokens(model, features)
    for own, count in zip(slots.split(counts), num_image_tokens(model, features), strict=True):
        kept[tuple(own[count:].t())] = False
    return kept


def merge_features(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Return token embeddings with projected picture features in the image slots: ``[batch, length, hidden]``.

    Args:
        model: a vision-language model, or a plain language model for a prompt without pictures.
        input_ids: ``[batch, length]``; of a draft with a compressor only :func:`kept_slots`.
        features: of the pictures in the order of the slots, for LLaVA-1.5 ``[images, patches, vision_hidden]``;
            ``None`` if there is no picture.

    Raises:
        ValueError: the prompt has another number of image slots than there are features.
    """
    embeds: Tensor = model.get_input_embeddings()(input_ids)
    slots = slots_of(model.config, input_ids)
    count, available = int(slots.sum()), sum(num_image_tokens(model, features))
    if count != available:
        raise ValueError(
            f"{count} image slots in the prompt but {available} vision features: the processor does not fit the model"
        )
    if features is None:
        return embeds
    projected = _project(model, features).to(embeds.device, embeds.dtype)
    return embeds.masked_scatter(slots.unsqueeze(-1), projected)


def _project(model: PreTrainedModel, features: Features) -> Tensor:
    """Project features to all image slots that the model reads, ``[slots, hidden]``."""
    family, compressor = features_family(model.config), compressor_of(model)
    projected = family.project(model, features)
    if isinstance(model, SlotDraft):  # as the target reads them
        projected = model.projector(projected.to(model.dtype))
    if compressor is None:
        return projected
    return torch.cat([compressor(one) for one in projected.split(family.num_image_tokens(model, features))])
