"""Pairs of published shapes with random weights, made where they run: for timings that need no download."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from recipes.toy.build import build_processor, special_ids
from recipes.toy.recipe import ToyRecipe
from specllava.models.drafts.draft_vlm import DraftLlava, fuse
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.options import DraftFormat
from specllava.pair import Pair

SizeName = Literal["7b", "toy"]
SPREAD = 9.0  # standard deviation of random logits that makes them about as sure as a trained draft's: a nat or so
ROOM = 2 * 10**9  # bytes beside the weights: caches, activations, the device's own libraries
SMALL = 3 * 10**9  # bytes of a pair that a CPU may be asked for without saying so


@dataclass(frozen=True, slots=True)
class Size:
    """The shapes of a pair, with transformers' own names.

    Args:
        vision: of the tower that both read.
        target, draft: of the language models.
    """

    vision: CLIPVisionConfig
    target: LlamaConfig
    draft: LlamaConfig

    def llava(self, text: LlamaConfig, image_token: int) -> LlavaConfig:
        return LlavaConfig(
            vision_config=self.vision,
            text_config=text,
            image_token_index=image_token,
            image_seq_length=int(self.vision.image_size // self.vision.patch_size) ** 2,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
        )


def _llama(hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int, context: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=context,
    )


def size_of(name: SizeName) -> Size:
    """Return the sizes: ``7b`` is llava-hf/llava-1.5-7b-hf, its draft JackFram/llama-160m with 32,064 tokens."""
    if name == "7b":
        tower = CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336,
            patch_size=14,
        )  # fmt: skip
        return Size(tower, _llama(4096, 32, 32, 11008, 32064, 4096), _llama(768, 12, 12, 3072, 32064, 2048))
    tower = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14
    )
    return Size(tower, _llama(64, 2, 2, 128, 640, 512), _llama(32, 1, 1, 64, 640, 512))


def parameters(size: Size) -> tuple[int, int]:
    """Count the weights of target and draft without making them."""
    with torch.device("meta"):
        models = LlavaForConditionalGeneration(size.llava(size.target, 0)), DraftLlava(size.llava(size.draft, 0))
    target, draft = (sum(weight.numel() for weight in model.parameters()) for model in models)
    return target, draft


def device_for(size: Size, name: str, dtype: torch.dtype | None = None) -> tuple[torch.device, torch.dtype]:
    """Choose device and precision.

    Args:
        name: ``auto`` takes the GPU if there is one, and a CPU for a small pair only.
        dtype: by default bfloat16 on a GPU, float32 on a CPU.

    Raises:
        ValueError: there is no GPU for it, or too little of its memory is free.
    """
    needed = sum(parameters(size)) * (dtype or torch.bfloat16).itemsize + ROOM
    if name == "auto":
        if needed > SMALL and not torch.cuda.is_available():
            raise ValueError(f"this pair needs a GPU with {needed / 1e9:.1f} GB and there is none: use random-toy")
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device, dtype or torch.float32
    free = torch.cuda.mem_get_info(device)[0]
    if needed > free:
        raise ValueError(f"this pair needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} are free on {device}: free some")
    return device, dtype or torch.bfloat16


@contextmanager
def made_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Make new modules on a device: 7 billion float32 numbers on the way would need twice the memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def processor_of(size: Size) -> tuple[LlavaProcessor, int]:
    """Build a processor of words of the toy world for pictures of this size; return it and the image token."""
    recipe = replace(ToyRecipe.tiny(), image_size=size.vision.image_size, patch_size=size.vision.patch_size)
    processor = build_processor(recipe)
    return processor, special_ids(processor)["<image>"]


def build(name: SizeName, device: torch.device, dtype: torch.dtype) -> Pair:
    """Build a pair with random weights, whose answers have no end."""
    size = size_of(name)
    processor, marker = processor_of(size)
    torch.manual_seed(0)
    with made_on(device, dtype):
        target = LlavaForConditionalGeneration(size.llava(size.target, marker)).eval()
        draft = DraftLlava(size.llava(size.draft, marker)).eval()
    for model in (target, draft):
        weight = model.lm_head.weight
        torch.nn.init.normal_(weight, std=SPREAD / weight.shape[1] ** 0.5)
    target.generation_config.eos_token_id = []
    return Pair(name, target, fuse(draft), processor, f"{name} target, random", f"{name} draft, random")


def feature_draft(pair: Pair, kind: DraftFormat) -> Pair:
    """The same target with a new draft that reads its states, of the format's published shape."""
    with made_on(pair.device, pair.target.dtype):
        draft = fresh_feature_draft(pair.target, kind, input_norm=False)
    draft = draft.to(pair.device, pair.target.dtype).eval()
    return replace(pair, draft=fuse(draft), draft_name=f"{kind} draft, new")
