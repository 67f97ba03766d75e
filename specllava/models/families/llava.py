"""LLaVA-1.5 and LLaVA-NeXT, whose tower target and draft share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlavaForConditionalGeneration,
    LlavaNextForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import select_best_resolution

from specllava.models.drafts.draft_vlm import DraftLlava, DraftLlavaNext
from specllava.models.families.interface import SharedTower, Size, Tiles, square
from specllava.models.tokens import count_prefix_tokens


class Llava(SharedTower):
    """LLaVA-1.5 (arXiv 2310.03744): a picture is one square, and takes as many slots as it has patches."""

    name = "llava"
    target, draft = LlavaForConditionalGeneration, DraftLlava
    shared: tuple[str, ...] = ("vision_feature_layer", "vision_feature_select_strategy")

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        return square(config, processor) | patches(config, processor)

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        return list(pixel_values[:, None])

    def features_of(self, states: Tensor, size: Size) -> Tensor:
        return states[0]

    def stack(self, pictures: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(pictures))

    def num_image_tokens(self, model: PreTrainedModel, features: Tensor) -> list[int]:
        return [features.shape[1]] * len(features)

    def project(self, model: PreTrainedModel, features: Tensor) -> Tensor:
        embeddings: Tensor = model.model.multi_modal_projector(features.to(model.dtype))
        return embeddings.flatten(0, 1)

    def projector(self, model: PreTrainedModel) -> list[nn.Parameter]:
        return list(model.model.multi_modal_projector.parameters())


class LlavaNext(SharedTower):
    """LLaVA-NeXT (LLaVA-1.6): the whole picture and its tiles in the best of several grids ("anyres").

    Tiles are put together again, what was padding is cut away, and every row of patches ends in a learnt newline; so
    pictures of one prompt take different numbers of slots.
    """

    name = "llava_next"
    target, draft = LlavaNextForConditionalGeneration, DraftLlavaNext
    shared = (*Llava.shared, "image_grid_pinpoints")

    def _num_tiles(self, config: PretrainedConfig, size: Size) -> int:
        """Count the whole picture and its tiles in the best of the model's grids."""
        side = config.vision_config.image_size
        height, width = select_best_resolution(size, config.image_grid_pinpoints)
        return 1 + int(height // side) * int(width // side)

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
        grids = processor.image_processor.image_grid_pinpoints, config.image_grid_pinpoints
        listed = [sorted(tuple(one) for one in each) for each in grids]
        return square(config, processor) | patches(config, processor) | {"image_grid_pinpoints": (listed[0], listed[1])}

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        """Return each picture's tiles.

        ``pixel_values`` is ``[images, most tiles, 3, height, width]``, with zeros for tiles that are not there.
        """
        return [tiles[: self._num_tiles(config, size)] for tiles, size in zip(pixel_values, sizes, strict=True)]

    def features_of(self, states: Tensor, size: Size) -> Tiles:
        return Tiles(states, size)

    def stack(self, pictures: Sequence[Tiles]) -> tuple[Tiles, ...]:
        return tuple(pictures)

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[Tiles]) -> list[int]:
        blank = [one.states.new_zeros((*one.states.shape[:2], 1)) for one in features]  # the arrangement, without work
        return [len(one) for one in self._pack(model, blank, features, blank[0].new_zeros(1))]

    def project(self, model: PreTrainedModel, features: Sequence[Tiles]) -> Tensor:
        states = torch.cat([one.states for one in features]).to(model.dtype)  # [tiles of all, patches, vision_hidden]
        embeddings = model.model.multi_modal_projector(states).split([len(one.states) for one in features])
        return torch.cat(self._pack(model, embeddings, features, model.model.image_newline))

    def projector(self, model: PreTrainedModel) -> list[nn.Parameter]:
        return [*model.model.multi_modal_projector.parameters(), model.model.image_newline]

    def _pack(
        self, model: PreTrainedModel, tiles: Sequence[Tensor], features: Sequence[Tiles], newline: Tensor
    ) -> list[Tensor]:
        """Arrange ``tiles`` ``[tiles, patches, hidden]`` as ``[slots, hidden]`` for each picture."""
        packed: list[Tensor]
        packed, _ = model.pack_image_features(
            tiles,
            [one.size for one in features],
            vision_feature_select_strategy=model.config.vision_feature_select_strategy,
            image_newline=newline,
        )
        return packed


def patches(config: PretrainedConfig, processor: Any) -> dict[str, tuple[object, object]]:
    """Return the required fields that give the number of slots of a picture's size."""
    names = "patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"
    vision = config.vision_config
    models = vision.patch_size, config.vision_feature_select_strategy, count_prefix_tokens(vision)
    return {name: (getattr(processor, name), ours) for name, ours in zip(names, models, strict=True)}
