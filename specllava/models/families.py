"""Families of targets and their list: from LLaVA-1.5 to language models; ``docs/models.md`` adds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Gemma3ForConditionalGeneration,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    LlavaForConditionalGeneration,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    SmolVLMForConditionalGeneration,
)
from transformers.image_processing_utils import select_best_resolution

from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import DraftLlava, DraftLlavaNext
from specllava.models.family import (
    Family,
    Features,
    GridFeatures,
    ImageFeatures,
    Picture,
    ProcessedPrompt,
    Requirements,
    SharedTower,
    Size,
    Tiles,
    split_tiles,
    square,
)
from specllava.models.language_model import LANGUAGE_MODELS
from specllava.models.tokens import TextProcessor, count_prefix_tokens


class Llava(SharedTower):
    """LLaVA-1.5 (arXiv 2310.03744): a picture is one square, and takes as many slots as it has patches."""

    name = "llava"
    target, draft = LlavaForConditionalGeneration, DraftLlava
    shared: tuple[str, ...] = ("vision_feature_layer", "vision_feature_select_strategy")

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        return square(config, processor) | _patches(config, processor)

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

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        grids = processor.image_processor.image_grid_pinpoints, config.image_grid_pinpoints
        listed = [sorted(tuple(one) for one in each) for each in grids]
        grid: Requirements = {"image_grid_pinpoints": (listed[0], listed[1])}
        return square(config, processor) | _patches(config, processor) | grid

    def pixels(self, config: PretrainedConfig, pixel_values: Tensor, sizes: Sequence[Size]) -> list[Tensor]:
        """Return each picture's tiles.

        ``pixel_values`` is ``[images, most tiles, 3, height, width]``, with zeros for tiles that are not there.
        """
        return [tiles[: self._num_tiles(config, size)] for tiles, size in zip(pixel_values, sizes, strict=True)]

    def features_of(self, states: Tensor, size: Size) -> Tiles:
        return Tiles(states, size)

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
        packed: list[Tensor] = model.pack_image_features(
            tiles,
            [one.size for one in features],
            vision_feature_select_strategy=model.config.vision_feature_select_strategy,
            image_newline=newline,
        )[0]
        return packed


def _patches(config: PretrainedConfig, processor: Any) -> Requirements:
    """Return the required fields that give the number of slots of a picture's size."""
    names = "patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"
    vision = config.vision_config
    models = vision.patch_size, config.vision_feature_select_strategy, count_prefix_tokens(vision)
    return {name: (getattr(processor, name), ours) for name, ours in zip(names, models, strict=True)}


class NoVideo:
    """Of a processor, the part without a video processor, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


class LlavaOnevisionProcessorPil(NoVideo, LlavaOnevisionProcessor):
    """LLaVA-OneVision's processor without its video processor."""


class InternVLProcessorPil(NoVideo, InternVLProcessor):
    """InternVL's processor without its video processor."""


class Qwen2VLProcessorPil(NoVideo, Qwen2VLProcessor):
    """Qwen2-VL's and Qwen2.5-VL's processor without its video processor."""


class Qwen3VLProcessorPil(NoVideo, Qwen3VLProcessor):
    """Qwen3-VL's processor without its video processor."""


class Plain(Family):
    """Family with ordinary positions, which transformers encodes by its own ``get_image_features``.

    A picture's features are the embeddings of its slots, in the space of the model that read it. A draft reads them
    through a projector of its own (``SlotDraft``), or each picture with a tower of its own.
    """

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        """Split the pixels, each row of which is a picture."""
        return [{"pixel_values": one} for one in prompt.inputs["pixel_values"].split(1)]

    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        pooled = [model.model.get_image_features(**one, return_dict=True).pooler_output for one in pictures]
        return [(one if isinstance(one, Tensor) else torch.cat(list(one))).flatten(0, -2) for one in pooled]

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[Tensor]) -> list[int]:
        return [len(one) for one in features]

    def project(self, model: PreTrainedModel, features: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(features))


class LlavaOnevision(Plain):
    """LLaVA-OneVision (arXiv 2408.03326): one picture is read in tiles, of several each in one square."""

    name, target, processor = "llava_onevision", LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessorPil

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        vision = config.vision_config
        tokens = processor.num_image_tokens, (vision.image_size // vision.patch_size) ** 2
        return square(config, processor) | {"num_image_tokens": tokens}

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        counts = prompt.inputs["batch_num_images"]
        several = counts.repeat_interleave(counts).clamp(max=2)  # features do not depend on how many others there are
        names = "pixel_values", "image_sizes", "batch_num_images"
        read = prompt.inputs["pixel_values"], prompt.inputs["image_sizes"], several
        return [dict(zip(names, own, strict=True)) for own in zip(*(one.split(1) for one in read), strict=True)]


class InternVL(Plain):
    """InternVL 2.5 to 3.5 (arXiv 2504.10479): tiles of equal numbers of slots, then the whole picture."""

    name, target, processor = "internvl", InternVLForConditionalGeneration, InternVLProcessorPil

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        (side, _), (patch, _) = config.vision_config.image_size, config.vision_config.patch_size
        tokens = processor.image_seq_length, int(side // patch * config.downsample_ratio) ** 2
        return square(config, processor) | {"image_seq_length": tokens}

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        slots = torch.eq(prompt.inputs["input_ids"][0], prompt.config.image_token_id).nonzero()[:, 0]
        begins = torch.cat([slots.new_tensor([True]).bool(), slots.diff() > 1])  # pictures lie between two tokens
        counts = begins.cumsum(0).bincount()[1:] // prompt.config.image_seq_length
        return [{"pixel_values": tiles} for tiles in split_tiles(prompt.inputs["pixel_values"], counts.tolist())]


class Gemma3(Plain):
    """Gemma 3: a picture is one square of 256 slots, which attend to each other in both directions while it is read.

    Where the processor pans and scans, each crop is a picture of its own.
    """

    name, target = "gemma3", Gemma3ForConditionalGeneration
    bidirectional = True

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        tokens = processor.image_seq_length, config.mm_tokens_per_image
        return square(config, processor) | {"image_seq_length": tokens}

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": torch.eq(input_ids, config.image_token_id).int()}


class Idefics3(Plain):
    """Idefics3 (arXiv 2408.12637): tiles between row and column tokens, then the whole picture."""

    name, target = "idefics3", Idefics3ForConditionalGeneration

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        side = config.vision_config.image_size
        tokens = (side // config.vision_config.patch_size // config.scale_factor) ** 2
        return {
            "max_image_size": (processor.image_processor.max_image_size["longest_edge"], side),
            "image_seq_len": (processor.image_seq_len, tokens),
        }

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        count = prompt.processor.image_processor.get_number_of_image_patches
        tiles = [max(1, count(*size)[0]) for size in prompt.sizes]
        names = "pixel_values", "pixel_attention_mask"  # [1, tiles, …]
        read = zip(*(split_tiles(prompt.inputs[name][0], tiles) for name in names), strict=True)
        return [{name: one[None] for name, one in zip(names, parts, strict=True)} for parts in read]


class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM2 (arXiv 2504.05299), which write a picture as Idefics3 does."""

    name, target, processor = "smolvlm", SmolVLMForConditionalGeneration, Idefics3Processor


class Qwen2VL(Family):
    """Qwen2-VL: pictures of any shape, a slot for four patches.

    Tokens have positions in time, height and width (M-RoPE, arXiv 2409.12191). A word has the same in all three rows.
    A picture's slots have those of their grid, and later tokens go on after its longer side. So a text with
    pictures ends at a smaller position than its length, and every later token keeps that offset.
    """

    name, target, processor = "qwen2_vl", Qwen2VLForConditionalGeneration, Qwen2VLProcessorPil
    position_rows = 3

    def processor_requirements(self, config: PretrainedConfig, processor: Any) -> Requirements:
        images, vision = processor.image_processor, config.vision_config
        return {
            "patch_size": (images.patch_size, vision.patch_size),
            "temporal_patch_size": (images.temporal_patch_size, vision.temporal_patch_size),
            "merge_size": (images.merge_size, vision.spatial_merge_size),
        }

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        grids = prompt.inputs["image_grid_thw"].split(1)
        patches = prompt.inputs["pixel_values"].split([int(grid.prod()) for grid in grids])
        return [{"pixel_values": own, "image_grid_thw": grid} for own, grid in zip(patches, grids, strict=True)]

    def encode(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[ImageFeatures]:
        return [self._features(model, one) for one in pictures]

    def _features(self, model: PreTrainedModel, picture: Picture) -> GridFeatures:
        grid = picture["image_grid_thw"]
        output = model.model.get_image_features(picture["pixel_values"], grid, return_dict=True)
        (embeddings,) = output.pooler_output
        deep = [layer for (layer,) in getattr(output, "deepstack_features", ())]
        empty = embeddings.new_empty((0, *embeddings.shape))
        return GridFeatures(embeddings, grid, torch.stack(deep) if deep else empty)

    def num_image_tokens(self, model: PreTrainedModel, features: Sequence[GridFeatures]) -> list[int]:
        return [len(one.embeddings) for one in features]

    def project(self, model: PreTrainedModel, features: Sequence[GridFeatures]) -> Tensor:
        return torch.cat([one.embeddings for one in features])

    def prefill_positions(
        self, model: PreTrainedModel, input_ids: Tensor, features: Sequence[GridFeatures] | None
    ) -> Tensor | None:
        if features is None:
            return None
        positions: Tensor  # [3, 1, length]
        positions, _ = model.model.get_rope_index(  # its offset is that of the highest id, which decoding does not use
            input_ids,
            image_grid_thw=torch.cat([one.grid for one in features]),
            **self.prompt_arguments(model.config, input_ids),
        )
        return positions

    def prompt_arguments(self, config: PretrainedConfig, input_ids: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": torch.eq(input_ids, config.image_token_id).int()}


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: most layers of its tower attend within windows."""

    name, target = "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration


class Qwen3VL(Qwen2VL):
    """Qwen3-VL: after its first layers the decoder adds to each slot what the tower made of it earlier (DeepStack)."""

    name, target, processor = "qwen3_vl", Qwen3VLForConditionalGeneration, Qwen3VLProcessorPil

    def prefill_arguments(
        self, model: PreTrainedModel, input_ids: Tensor, features: Sequence[GridFeatures] | None
    ) -> dict[str, Any]:
        if features is None:
            return {}
        return {
            "visual_pos_masks": self.prompt_arguments(model.config, input_ids)["mm_token_type_ids"] > 0,
            "deepstack_visual_embeds": list(torch.cat([one.deep for one in features], dim=1)),  # [slots, hidden] each
        }


class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL whose decoder routes each token to a few of its experts, by that token's state alone."""

    name, target = "qwen3_vl_moe", Qwen3VLMoeForConditionalGeneration


CAP: Final = "final_logit_softcapping"


class TextFamily(Plain):
    """Language models of one class: every prompt is a text, and what reads pictures is never reached."""

    sees = False
    draft_advice = "name a smaller language model of the same tokens with --draft"

    def __init__(self, config: PretrainedConfig) -> None:
        self.name, self.target = config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        if getattr(config, CAP, None) is not None:
            name = Path(config.name_or_path).name or self.name
            raise ValueError(
                f"{name} has {CAP} {getattr(config, CAP)}: its logits are capped after the head, which is not done here"
            )

    def read_processor(self, checkpoint: Checkpoint) -> Any:
        return TextProcessor(checkpoint.tokenizer())


FAMILIES: Final[tuple[Family, ...]] = (
    Llava(), LlavaNext(), LlavaOnevision(), InternVL(), Idefics3(), SmolVLM(), Qwen2VL(), Qwen25VL(), Qwen3VL(),
    Qwen3VLMoe(), Gemma3(),
)  # fmt: skip


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
    """Refuse arguments of ``forward`` that are not those which the model's processor makes.

    Families derive token types from ``input_ids``. ``generate`` reads those that it is given, or none.

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
    """Return a model's features of the pictures that its processor made, ``None`` if there are none.

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
