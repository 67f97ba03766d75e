"""Families of vision-language models behind one interface; ``docs/models.md`` adds a third.

A tower runs once per picture, on the result of :meth:`Family.pixels`; its features are shared by target and draft,
and each projects them for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from transformers import (
    LlavaForConditionalGeneration,
    LlavaNextForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import select_best_resolution

from specllava.models.draft_classes import DraftLlava, DraftLlavaNext

Size = tuple[int, int]  # height and width in pixels


@dataclass(frozen=True, slots=True)
class Tiles:
    """Vision states of a picture that is read in tiles.

    Args:
        states: ``[tiles, patches, vision_hidden]``: the whole picture, then its tiles row by row.
        size: of the picture, which determines the part of the tiles that is padding.
    """

    states: Tensor
    size: Size


ImageFeatures = Tensor | Tiles  # one picture's features; a tensor is [patches, vision_hidden]
Features = Tensor | tuple[Tiles, ...]  # those of all pictures of a prompt; a tensor is [images, patches, vision_hidden]


class Family(Protocol):
    """Interface of a family. ``sizes`` are those of the pictures as given, in their order."""

    name: str  # config.model_type
    target: type[PreTrainedModel]
    draft: type[PreTrainedModel]  # the same without a tower
    shared: tuple[str, ...]  # fields of the configuration in which models agree that read the same features
    position_rows: int = 1  # of position ids per token

    def num_tiles(self, config: PretrainedConfig, size: Size) -> int:
        """Return the number of squares in which the tower reads a picture."""
        ...

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        """Return the tower's input for each picture, ``[tiles, 3, height, width]``, from the processor's output."""
        ...

    def key(self, pixels: Tensor, size: Size) -> str:
        """Return a key of a picture's features: equal keys mean equal features."""
        ...

    def features_of(self, states: Tensor, size: Size) -> ImageFeatures:
        """Return one picture's features, from the tower's states of it, ``[tiles, patches, vision_hidden]``."""
        ...

    def stack(self, pictures: Sequence[Any]) -> Features:
        """Join the features of several pictures, at least one, into one value."""
        ...

    def num_image_tokens(self, model: PreTrainedModel, features: Any) -> list[int]:
        """Return the number of image slots that each picture takes in a prompt."""
        ...

    def project(self, model: PreTrainedModel, features: Any) -> Tensor:
        """Project features by the projector of ``model`` to all image slots in their order, ``[slots, hidden]``."""
        ...

    def projector(self, model: PreTrainedModel) -> list[nn.Parameter]:
        """Return the weights that :meth:`project` uses."""
        ...

    def prefill_positions(
        self, model: PreTrainedModel, input_ids: Tensor, features: Any
    ) -> tuple[Tensor | None, int]:
        """Return position ids of a prompt, ``[1, length]`` or ``[rows, 1, length]``, and the offset behind it.

        A later token at place ``n`` of the text has position ``n`` plus that offset, in every row. By default both
        are what transformers does by itself: one row, no offset.
        """
        return None, 0

    def inputs(self, pixel_values: Tensor, sizes: Sequence[Size]) -> dict[str, Tensor]:
        """Return the arguments of the family's own ``forward`` and ``generate`` for the pictures."""
        ...


class Llava(Family):
    """LLaVA-1.5 (arXiv 2310.03744): a picture is one square, and takes as many slots as it has patches."""

    name = "llava"
    target, draft = LlavaForConditionalGeneration, DraftLlava
    shared: tuple[str, ...] = ("vision_feature_layer", "vision_feature_select_strategy")

    def num_tiles(self, config: PretrainedConfig, size: Size) -> int:
        return 1

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        return list(pixel_values[:, None])

    def key(self, pixels: Tensor, size: Size) -> str:
        return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()

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

    def inputs(self, pixel_values: Tensor, sizes: Sequence[Size]) -> dict[str, Tensor]:
        return {"pixel_values": pixel_values}


class LlavaNext(Family):
    """LLaVA-NeXT (LLaVA-1.6): the whole picture and its tiles in the best of several grids ("anyres").

    Tiles are put together again, what was padding is cut away, and every row of patches ends in a learnt newline; so
    pictures of one prompt take different numbers of slots.
    """

    name = "llava_next"
    target, draft = LlavaNextForConditionalGeneration, DraftLlavaNext
    shared = (*Llava.shared, "image_grid_pinpoints")

    def num_tiles(self, config: PretrainedConfig, size: Size) -> int:
        side = config.vision_config.image_size
        height, width = select_best_resolution(size, config.image_grid_pinpoints)
        return 1 + int(height // side) * int(width // side)

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        """Return each picture's tiles.

        ``pixel_values`` is ``[images, most tiles, 3, height, width]``, with zeros for tiles that are not there.
        """
        return [tiles[: self.num_tiles(config, size)] for tiles, size in zip(pixel_values, sizes, strict=True)]

    def key(self, pixels: Tensor, size: Size) -> str:
        return hashlib.sha256(pixels.numpy().tobytes() + repr(size).encode()).hexdigest()

    def features_of(self, states: Tensor, size: Size) -> Tiles:
        return Tiles(states, size)

    def stack(self, pictures: Sequence[Tiles]) -> tuple[Tiles, ...]:
        return tuple(pictures)

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[Tiles]) -> list[int]:
        blank = [one.states.new_zeros((*one.states.shape[:2], 1)) for one in features]  # the arrangement, without work
        return [len(one) for one in self._packed(model, blank, features, blank[0].new_zeros(1))]

    def project(self, model: PreTrainedModel, features: Sequence[Tiles]) -> Tensor:
        states = torch.cat([one.states for one in features]).to(model.dtype)  # [tiles of all, patches, vision_hidden]
        embeddings = model.model.multi_modal_projector(states).split([len(one.states) for one in features])
        return torch.cat(self._packed(model, embeddings, features, model.model.image_newline))

    def projector(self, model: PreTrainedModel) -> list[nn.Parameter]:
        return [*model.model.multi_modal_projector.parameters(), model.model.image_newline]

    def inputs(self, pixel_values: Tensor, sizes: Sequence[Size]) -> dict[str, Tensor]:
        return {"pixel_values": pixel_values, "image_sizes": torch.tensor(list(sizes), device=pixel_values.device)}

    def _packed(
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


FAMILIES: Final[tuple[Family, ...]] = (Llava(), LlavaNext())


def find_family(config: PretrainedConfig) -> Family | None:
    """Return the family of a model by its configuration's ``model_type``; ``None`` for a plain language model."""
    return next((family for family in FAMILIES if family.name == config.model_type), None)


def family_of(config: PretrainedConfig) -> Family:
    """Return the family of a model by its configuration's ``model_type``.

    Raises:
        ValueError: none that is known here.
    """
    if family := find_family(config):
        return family
    known = " and ".join(family.name for family in FAMILIES)
    raise ValueError(f"models of type {config.model_type} are not known as targets: {known} are")
