"""Configurations of the models that presets name, in the figures that decide their size, as they are published."""

from __future__ import annotations

from typing import Any

import transformers

from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig
from specllava.models.options import DraftFormat

Build = tuple[type[transformers.PreTrainedModel], transformers.PretrainedConfig]
Shape = tuple[int, int, int, int, int]  # hidden size, intermediate size, layers, heads, KV heads
SIZES = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 384, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
SMALL_SIGLIP = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 512, "patch_size": 16,
}  # fmt: skip


def built(family: str, shape: Shape, rows: int, vision: dict[str, Any], tied: bool = False, **text: Any) -> Build:
    """The class and configuration of a vision-language model; ``rows`` are those of its embeddings."""
    fields = dict(zip(SIZES, shape, strict=True)) | {"vocab_size": rows, "tie_word_embeddings": tied} | text
    scale = {"scale_factor": vision.pop("scale_factor")} if "scale_factor" in vision else {}
    parts = {"text_config": fields, "vision_config": vision, "tie_word_embeddings": tied}
    config = transformers.CONFIG_MAPPING[family](**parts, **scale)
    return transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)], config


def smol(shape: Shape, vision: dict[str, Any], scale: int) -> Build:
    return built("smolvlm", shape, 49280, vision | {"scale_factor": scale}, model_type="llama", head_dim=64)


def words(kind: str, shape: Shape, rows: int, tied: bool = False, **fields: Any) -> Build:
    sizes = dict(zip(SIZES, shape, strict=True)) | {"vocab_size": rows, "tie_word_embeddings": tied} | fields
    config = transformers.CONFIG_MAPPING[kind](**sizes)
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config


SEVEN = (4096, 11008, 32, 32, 32)
QWEN_TOWER = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}


def models() -> dict[str, Build]:
    return {
        "lmsys/vicuna-7b-v1.3@refs/pr/4": words("llama", SEVEN, 32000),
        "meta-llama/Llama-3.1-8B-Instruct": words("llama", (4096, 14336, 32, 32, 8), 128256),
        "Qwen/Qwen3-8B": words("qwen3", (4096, 12288, 36, 32, 8), 151936, head_dim=128),
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": words("llama", (2048, 8192, 24, 32, 32), 49152, True),
        "HuggingFaceTB/SmolLM2-135M-Instruct": words("llama", (576, 1536, 30, 9, 3), 49152, True),
        "llava-hf/llava-1.5-7b-hf": built("llava", SEVEN, 32064, dict(CLIP), model_type="llama"),
        "llava-hf/llava-v1.6-vicuna-7b-hf": built("llava_next", SEVEN, 32064, dict(CLIP), model_type="llama"),
        "HuggingFaceTB/SmolVLM2-256M-Video-Instruct": smol((576, 1536, 30, 9, 3), SMALL_SIGLIP, 4),
        "HuggingFaceTB/SmolVLM2-2.2B-Instruct": smol((2048, 8192, 24, 32, 32), SIGLIP, 3),
        "Qwen/Qwen2.5-VL-7B-Instruct": built("qwen2_5_vl", (3584, 18944, 28, 28, 4), 152064, dict(QWEN_TOWER)),
    }


def reading(format_: DraftFormat, shape: Shape, rows: int, head: int | None = None) -> Build:
    """The class and configuration of a draft that reads states; ``head`` are the tokens that its own head scores."""
    hidden, wide, _, heads, kv_heads = shape
    taps = [2, 14, 25] if format_ == "eagle3" else [-1]
    config = FeatureDraftConfig(
        format=format_, hidden_size=hidden, intermediate_size=wide, num_attention_heads=heads, state_layers=taps,
        num_key_value_heads=kv_heads, head_dim=128, vocab_size=rows, draft_vocab_size=head,
    )  # fmt: skip
    return FeatureDraft, config


def drafts() -> dict[str, Build]:
    return {
        "Cloudriver/MSD-LLaVA1.5-7B": reading("msd", SEVEN, 32064),
        "Cloudriver/ViSpec-LLaVA1.5-7B": reading("vispec", SEVEN, 32064),
        "Cloudriver/EAGLE-LLaVA-1.5-7B": reading("eagle", SEVEN, 32064),
        "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf": reading("vispec", SEVEN, 32064),
        "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": reading("vispec", (3584, 18944, 1, 28, 28), 152064),
        "yuhuili/EAGLE-Vicuna-7B-v1.3": reading("eagle", SEVEN, 32000),
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": reading("eagle3", (4096, 14336, 1, 32, 8), 128256, head=32000),
        "AngelSlim/Qwen3-8B_eagle3": reading("eagle3", (4096, 12288, 1, 32, 8), 151936, head=32000),
    }
