"""Interface of a family: how pictures become embeddings in image slots, and what positions tokens have."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoProcessor, PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.models.checkpoint import Checkpoint

Size = tuple[int, int]  # height and width in pixels
Picture = dict[str, Tensor]  # what a model reads of one picture, by the names of its ``forward``
Requirements = dict[str, tuple[object, object]]  # a field: the processor's value, the model's


@dataclass(frozen=True, slots=True)
class Tiles:
    """Vision states ``[tiles, patches, vision_hidden]``: the whole picture's, then those of its tiles row by row.

    The picture's size determines the part of the tiles that is padding.
    """

    states: Tensor
    size: Size


@dataclass(frozen=True, slots=True)
class GridFeatures:
    """Embeddings of a picture whose slots have positions in a grid.

    Args:
        embeddings: ``[slots, hidden]``.
        grid: patches in time, height and width, ``[1, 3]``.
        deep: what is added to the hidden states of the slots after each of the first decoder layers,
            ``[layers, slots, hidden]``.
    """

    embeddings: Tensor
    grid: Tensor
    deep: Tensor


# One picture's features; a tensor is [patches or slots, width].
ImageFeatures = Tensor | Tiles | GridFeatures
# Those of all pictures of a prompt; a tensor is [images, patches, vision_hidden].
Features = Tensor | tuple[Tiles, ...] | tuple[Tensor, ...] | tuple[GridFeatures, ...]


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """A model's configuration, and its processor's output for one prompt with at least one picture.

    Args:
        processor: ``None`` where only its output is at hand.
        inputs: as the processor gives them, ``input_ids`` among them.
        sizes: of the pictures as given, in their order.
    """

    config: PretrainedConfig
    processor: Any
    inputs: Mapping[str, Tensor]
    sizes: Sequence[Size]


class Family(ABC):
    """Interface of a family."""

    name: str  # config.model_type
    target: type[PreTrainedModel]
    processor: type[Any] = AutoProcessor  # class whose ``from_pretrained`` reads a checkpoint's processor
    sees: ClassVar[bool] = True  # it reads pictures
    draft_advice: ClassVar[str] = 'make one with "specllava draft init" and name it with --draft'
    position_rows: ClassVar[int] = 1  # of position ids per token
    bidirectional: ClassVar[bool] = False  # slots side by side attend to each other in both directions in the prefill

    def read_processor(self, checkpoint: Checkpoint) -> ProcessorMixin:
        """Read a checkpoint's processor."""
        return checkpoint.processor(self.processor)

    @abstractmethod
    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        """Split the processor's output for a prompt into pictures; equal ones have equal features."""

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        """Return the fields in which processor and model must agree.

        A mismatch in any other field shows only with the first picture, after the weights are loaded.
        """
        return {}

    @abstractmethod
    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        """Run pictures through the model's tower, and return the features of each."""

    def stack(self, pictures: Sequence[Any]) -> Features:
        """Join the features of several pictures, at least one, into one value."""
        return tuple(pictures)

    @abstractmethod
    def num_image_tokens(self, model: PreTrainedModel, features: Any) -> list[int]:
        """Return the number of image slots that each picture takes in a prompt."""

    @abstractmethod
    def project(self, model: PreTrainedModel, features: Any) -> Tensor:
        """Return the embeddings of all image slots in their order, ``[slots, hidden]``."""

    def prefill_positions(self, model: PreTrainedModel, input_ids: Tensor, features: Any) -> Tensor | None:
        """Return position ids of a prompt, ``[1, length]`` or ``[rows, 1, length]``; ``None``: 0, 1, 2, …

        Decoded tokens count on from the last id, in every row, as in transformers' ``generate``. The ids of a text's
        beginning do not depend on what follows, so columns of a KV cache serve every text that begins with them.
        """
        return None

    def prefill_arguments(self, model: PreTrainedModel, input_ids: Tensor, features: Any) -> dict[str, Any]:
        """Return the decoder's arguments beside embeddings and positions for the part of a prompt that is read."""
        return {}

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        """Return arguments of the model's ``forward`` for a prompt with pictures, beside ids and pictures."""
        return {}


class SharedTower(Family):
    """Family whose features are those of the tower, so that one pass of it serves target and draft.

    Each model projects the features for itself.
    """

    draft: type[PreTrainedModel]  # the target's class without a tower
    shared: tuple[str, ...]  # fields of the configuration in which models agree that read the same features

    @abstractmethod
    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        """Return the tower's input for each picture, ``[tiles, 3, height, width]``, from the processor's output."""

    @abstractmethod
    def features_of(self, states: Tensor, size: Size) -> ImageFeatures:
        """Return one picture's features, from the tower's states of it, ``[tiles, patches, vision_hidden]``."""

    def slot_width(self, config: PretrainedConfig) -> int:
        """Return the numbers of each patch in the tower's states: of all layers that the projector reads."""
        layers = config.vision_feature_layer
        return int(config.vision_config.hidden_size) * (1 if isinstance(layers, int) else len(layers))

    @abstractmethod
    def projector(self, model: PreTrainedModel) -> list[nn.Parameter]:
        """Return the weights that :meth:`project` uses."""

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        read = self.pixels(prompt.config, prompt.inputs["pixel_values"], prompt.sizes)
        return [
            {"pixel_values": pixels, "image_sizes": torch.tensor([size])}
            for pixels, size in zip(read, prompt.sizes, strict=True)
        ]

    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        states = tower_features(model, torch.cat([one["pixel_values"] for one in pictures]))
        parts = states.split([len(one["pixel_values"]) for one in pictures])
        sizes = [(height, width) for one in pictures for height, width in one["image_sizes"].tolist()]
        return [self.features_of(own, size) for own, size in zip(parts, sizes, strict=True)]


def tower_features(target: PreTrainedModel, pixel_values: Tensor) -> Tensor:
    """Return the vision tower's features of pictures, before any projector: ``[images, patches, vision_hidden]``.

    Layer and strategy (whether the class token is dropped) are those of the model's configuration.
    """
    config = target.config
    outputs = target.model.vision_tower(pixel_values, output_hidden_states=True)
    layers = config.vision_feature_layer
    chosen = [outputs.hidden_states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
    if config.vision_feature_select_strategy == "default":
        chosen = [states[:, 1:] for states in chosen]
    return torch.cat(chosen, dim=-1) if len(chosen) > 1 else chosen[0]


def square(config: PretrainedConfig, processor: Any) -> Requirements:
    """Return the agreement of a processor that scales or cuts pictures to the square that the tower reads."""
    images, side = processor.image_processor, config.vision_config.image_size
    name = "crop_size" if getattr(images, "do_center_crop", False) else "size"
    size = getattr(images, name)
    made = size.get("height") or size.get("shortest_edge")
    return {name: (made, side[0] if isinstance(side, list | tuple) else side)}


def split_tiles(tiles: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Split the tiles ``[tiles, …]`` of all pictures into those of each, if the prompt has room for as many.

    Raises:
        ValueError: they are not as many as the prompt has room for.
    """
    if len(tiles) != sum(counts):
        raise ValueError(
            f"the processor made {len(tiles)} tiles of {len(counts)} pictures, the prompt has room for {sum(counts)}:"
            " it does not fit the model"
        )
    return list(tiles.split(list(counts)))


def picture_key(picture: Picture) -> str:
    """Return a key of a picture: equal keys mean equal features."""
    digest = hashlib.sha256()
    for name, value in sorted(picture.items()):
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
