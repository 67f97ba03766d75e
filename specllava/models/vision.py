"""Vision features: computed once by the tower, projected by each model that wants them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration


def tower_features(target: LlavaForConditionalGeneration, pixel_values: Tensor) -> Tensor:
    """What the vision tower says of pictures, before any projector: ``[images, patches, vision_hidden]``.

    Layer and strategy (whether the class token is dropped) are those of the model's configuration.
    """
    config = target.config
    outputs = target.model.vision_tower(pixel_values, output_hidden_states=True)
    layers = config.vision_feature_layer
    chosen = [outputs.hidden_states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
    if config.vision_feature_select_strategy == "default":
        chosen = [states[:, 1:] for states in chosen]
    return torch.cat(chosen, dim=-1) if len(chosen) > 1 else chosen[0]


def merge_features(model: LlavaForConditionalGeneration, input_ids: Tensor, features: Tensor | None) -> Tensor:
    """Token embeddings with projected picture features in the image slots: ``[batch, length, hidden]``.

    Args:
        input_ids: ``[batch, length]``.
        features: ``[images, patches, vision_hidden]`` in the order of the slots; ``None`` if there is no picture.

    Raises:
        ValueError: the prompt has another number of image slots than there are features.
    """
    slots = input_ids == model.config.image_token_id
    count = int(slots.sum())
    available = 0 if features is None else features.shape[0] * features.shape[1]
    if count != available:
        raise ValueError(f"{count} image slots in the prompt but {available} vision features")
    embeds: Tensor = model.get_input_embeddings()(input_ids)
    if features is None:
        return embeds
    projected = model.model.multi_modal_projector(features).to(embeds.dtype)
    return embeds.masked_scatter(slots.unsqueeze(-1), projected)
