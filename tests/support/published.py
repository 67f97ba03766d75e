"""Configurations of the models that presets name, in the figures that decide their size, as they are published."""

from __future__ import annotations

from typing import Any

from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from specllava.models.drafts.draft_reading import DraftFormat
from specllava.models.drafts.feature_draft import FeatureDraft, FeatureDraftConfig

Build = tuple[type[PreTrainedModel], PretrainedConfig]
Shape = tuple[int, int, int, int, int]  # hidden size, intermediate size, layers, heads, KV heads
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
INTERNVIT = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": [448, 448], "patch_size": [14, 14],
}  # fmt: skip
BIG_QWEN3_TOWER = (27, 1152, 4304, [8, 16, 24])
SMALL_QWEN3_TOWER = (24, 1024, 4096, [5, 11, 17])
MIXTURE: dict[str, Any] = {
    "kind": "qwen3_vl_moe", "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
}  # fmt: skip


def built(family: str, shape: Shape, rows: int, vision: dict[str, Any], tied: bool = False, **text: Any) -> Build:
    """The class and configuration of a vision-language model; ``rows`` are those of its embeddings."""
    names = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"
    fields = dict(zip(names, shape, strict=True)) | {"vocab_size": rows, "tie_word_embeddings": tied} | text
    scale = {"scale_factor": vision.pop("scale_factor")} if "scale_factor" in vision else {}
    config = CONFIG_MAPPING[family](text_config=fields, vision_config=vision, tie_word_embeddings=tied, **scale)
    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)], config


def qwen2(shape: Shape, rows: int, wide: int, tied: bool = False) -> Build:
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": wide, "num_heads": 16, "out_hidden_size": shape[0]}
    return built("qwen2_5_vl", shape, rows, vision, tied)


def qwen3(
    shape: Shape, tower: tuple[int, int, int, list[int]], tied: bool = False, kind: str = "qwen3_vl", **text: Any
) -> Build:
    depth, hidden, wide, taps = tower
    vision = {
        "depth": depth, "hidden_size": hidden, "intermediate_size": wide, "num_heads": 16, "out_hidden_size": shape[0],
        "deepstack_visual_indexes": taps,
    }  # fmt: skip
    return built(kind, shape, 151936, vision, tied, head_dim=128, **text)


def smol(shape: Shape, vision: dict[str, Any], scale: int) -> Build:
    return built("smolvlm", shape, 49280, vision | {"scale_factor": scale}, model_type="llama", head_dim=64)


def internvl(shape: Shape) -> Build:
    return built("internvl", shape, 151674, dict(INTERNVIT), model_type="qwen2")


def gemma(shape: Shape, head_dim: int) -> Build:
    return built("gemma3", shape, 262208, SIGLIP | {"image_size": 896}, True, head_dim=head_dim)


def onevision(shape: Shape, rows: int, tied: bool = False) -> Build:
    vision = SIGLIP | {"model_type": "siglip_vision_model", "num_hidden_layers": 26}
    return built("llava_onevision", shape, rows, vision, tied, model_type="qwen2")


def llava(family: str, shape: Shape) -> Build:
    return built(family, shape, 32064, dict(CLIP), model_type="llama")


def words(kind: str, shape: Shape, rows: int, tied: bool = False, **fields: Any) -> Build:
    """The class and configuration of a language model."""
    names = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"
    sizes = dict(zip(names, shape, strict=True)) | {"vocab_size": rows, "tie_word_embeddings": tied} | fields
    config = CONFIG_MAPPING[kind](**sizes)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config


SEVEN, THIRTEEN = (4096, 11008, 32, 32, 32), (5120, 13824, 40, 40, 40)
QWEN_HALF, QWEN_SEVEN = (896, 4864, 24, 14, 2), (3584, 18944, 28, 28, 4)
QWEN_SEVENTY = (8192, 29568, 80, 64, 8)


def models() -> dict[str, Build]:
    """All models but drafts that read states, by their ids of the hub."""
    return {
        "lmsys/vicuna-7b-v1.3@refs/pr/4": words("llama", SEVEN, 32000),
        "meta-llama/Llama-3.1-8B-Instruct": words("llama", (4096, 14336, 32, 32, 8), 128256),
        "Qwen/Qwen3-8B": words("qwen3", (4096, 12288, 36, 32, 8), 151936, head_dim=128),
        "Qwen/Qwen2.5-7B-Instruct": words("qwen2", QWEN_SEVEN, 152064),
        "Qwen/Qwen2.5-0.5B-Instruct": words("qwen2", QWEN_HALF, 151936, True),
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": words("llama", (2048, 8192, 24, 32, 32), 49152, True),
        "HuggingFaceTB/SmolLM2-135M-Instruct": words("llama", (576, 1536, 30, 9, 3), 49152, True),
        "llava-hf/llava-1.5-7b-hf": llava("llava", SEVEN),
        "llava-hf/llava-1.5-13b-hf": llava("llava", THIRTEEN),
        "llava-hf/llava-v1.6-vicuna-7b-hf": llava("llava_next", SEVEN),
        "llava-hf/llava-v1.6-vicuna-13b-hf": llava("llava_next", THIRTEEN),
        "HuggingFaceTB/SmolVLM2-256M-Video-Instruct": smol((576, 1536, 30, 9, 3), SMALL_SIGLIP, 4),
        "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": smol((960, 2560, 32, 15, 5), SMALL_SIGLIP, 4),
        "HuggingFaceTB/SmolVLM2-2.2B-Instruct": smol((2048, 8192, 24, 32, 32), SIGLIP, 3),
        "Qwen/Qwen2-VL-7B-Instruct": built(
            "qwen2_vl", QWEN_SEVEN, 152064,
            {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "hidden_size": 3584},
        ),
        "Qwen/Qwen2.5-VL-3B-Instruct": qwen2((2048, 11008, 36, 16, 2), 151936, 3420, tied=True),
        "Qwen/Qwen2.5-VL-7B-Instruct": qwen2(QWEN_SEVEN, 152064, 3420),
        "Qwen/Qwen2.5-VL-32B-Instruct": qwen2((5120, 27648, 64, 40, 8), 152064, 3456),
        "Qwen/Qwen2.5-VL-72B-Instruct": qwen2(QWEN_SEVENTY, 152064, 3456),
        "Qwen/Qwen3-VL-2B-Instruct": qwen3((2048, 6144, 28, 16, 8), SMALL_QWEN3_TOWER, tied=True),
        "Qwen/Qwen3-VL-4B-Instruct": qwen3((2560, 9728, 36, 32, 8), SMALL_QWEN3_TOWER, tied=True),
        "Qwen/Qwen3-VL-8B-Instruct": qwen3((4096, 12288, 36, 32, 8), BIG_QWEN3_TOWER),
        "Qwen/Qwen3-VL-32B-Instruct": qwen3((5120, 25600, 64, 64, 8), BIG_QWEN3_TOWER),
        "Qwen/Qwen3-VL-30B-A3B-Instruct": qwen3((2048, 6144, 48, 32, 4), BIG_QWEN3_TOWER, **MIXTURE),
        "OpenGVLab/InternVL3-1B-hf": internvl(QWEN_HALF),
        "OpenGVLab/InternVL3-8B-hf": internvl(QWEN_SEVEN),
        "google/gemma-3-4b-it": gemma((2560, 10240, 34, 8, 4), 256),
        "google/gemma-3-12b-it": gemma((3840, 15360, 48, 16, 8), 256),
        "google/gemma-3-27b-it": gemma((5376, 21504, 62, 32, 16), 128),
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": onevision(QWEN_HALF, 152000, tied=True),
        "llava-hf/llava-onevision-qwen2-7b-ov-hf": onevision(QWEN_SEVEN, 152128),
        "llava-hf/llava-onevision-qwen2-72b-ov-hf": onevision(QWEN_SEVENTY, 152128),
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
    """All drafts that read states, by their ids of the hub."""
    return {
        "Cloudriver/MSD-LLaVA1.5-7B": reading("msd", SEVEN, 32064),
        "lucylyn/MSD-LLaVA1.5-7B": reading("msd", SEVEN, 32064),
        "Cloudriver/ViSpec-LLaVA1.5-7B": reading("vispec", SEVEN, 32064),
        "JLKang/ViSpec-llava-1.5-7b-hf": reading("vispec", SEVEN, 32064),
        "Cloudriver/EAGLE-LLaVA-1.5-7B": reading("eagle", SEVEN, 32064),
        "Cloudriver/EAGLE3-LLaVA1.5-7B": reading("eagle3", SEVEN, 32064),
        "lucylyn/MSD-LLaVA1.5-13B": reading("msd", THIRTEEN, 32064),
        "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf": reading("vispec", SEVEN, 32064),
        "JLKang/ViSpec-llava-v1.6-vicuna-13b-hf": reading("vispec", THIRTEEN, 32064),
        "JLKang/ViSpec-Qwen2.5-VL-3B-Instruct": reading("vispec", (2048, 11008, 1, 16, 16), 151936),
        "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": reading("vispec", (3584, 18944, 1, 28, 28), 152064),
        "lucylyn/MSD-Qwen2VL-7B-Instruct": reading("msd", QWEN_SEVEN, 152064),
        "Cloudriver/MSD-Qwen2.5-VL-7B-Instruct": reading("msd", QWEN_SEVEN, 152064),
        "Cloudriver/ViSpec-Qwen2.5-VL-7B-Instruct": reading("vispec", QWEN_SEVEN, 152064),
        "Cloudriver/EAGLE-Qwen2.5-VL-7B-Instruct": reading("eagle", QWEN_SEVEN, 152064),
        "Cloudriver/EAGLE3-Qwen2.5-VL-7B-Instruct": reading("eagle3", QWEN_SEVEN, 152064, head=32000),
        "Rayzl/qwen2.5-vl-7b-eagle3-sgl": reading("eagle3", QWEN_SEVEN, 152064, head=32000),
        "AngelSlim/Qwen3-VL-2B-Instruct_eagle3": reading("eagle3", (2048, 6144, 1, 16, 8), 151936, head=32000),
        "taobao-mnn/Qwen3-VL-2B-Instruct-Eagle3": reading("eagle3", (2048, 6144, 1, 16, 8), 151936, head=32000),
        "taobao-mnn/Qwen3-VL-8B-Instruct-Eagle3": reading("eagle3", (4096, 12288, 1, 32, 8), 151936, head=32000),
        "AngelSlim/Qwen3-VL-4B-Instruct_eagle3": reading("eagle3", (2560, 9728, 1, 32, 8), 151936, head=32000),
        "AngelSlim/Qwen3-VL-30B-A3B-Instruct_eagle3": reading("eagle3", (2048, 6144, 1, 32, 4), 151936, head=32000),
        "yuhuili/EAGLE-Vicuna-7B-v1.3": reading("eagle", SEVEN, 32000),
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": reading("eagle3", (4096, 14336, 1, 32, 8), 128256, head=32000),
        "AngelSlim/Qwen3-8B_eagle3": reading("eagle3", (4096, 12288, 1, 32, 8), 151936, head=32000),
    }
