"""Configurations of the models that presets name, as their authors publish them: the figures that decide sizes.

Of drafts that read states also ``config.json`` and tensors, as in Lyn-Lucy/MSD (``EAGLE/eagle/train``),
KangJialiang/ViSpec (``vispec/train``) and Tencent/AngelSlim (``…/train/configs``): shapes without memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig
from specllava.models.options import DraftFormat

Build = tuple[type[PreTrainedModel], PretrainedConfig]
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
    config = CONFIG_MAPPING[family](text_config=fields, vision_config=vision, tie_word_embeddings=tied, **scale)
    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)], config


def smol(shape: Shape, vision: dict[str, Any], scale: int) -> Build:
    return built("smolvlm", shape, 49280, vision | {"scale_factor": scale}, model_type="llama", head_dim=64)


def words(kind: str, shape: Shape, rows: int, tied: bool = False, **fields: Any) -> Build:
    """The class and configuration of a language model."""
    sizes = dict(zip(SIZES, shape, strict=True)) | {"vocab_size": rows, "tie_word_embeddings": tied} | fields
    config = CONFIG_MAPPING[kind](**sizes)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config


SEVEN = (4096, 11008, 32, 32, 32)
QWEN_TOWER = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}


def models() -> dict[str, Build]:
    """All models but drafts that read states, by their ids of the hub."""
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
    """All drafts that read states, by their ids of the hub."""
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


# ----------------------------------------------------------------------------------------------- of authors

Settings = dict[str, Any]


def sizes(hidden: int, inner: int, heads: int, kv: int, rows: int, eps: float = 1e-6, longest: int = 4096) -> Settings:
    """The keys that all of them have."""
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv,
        "num_hidden_layers": 1, "vocab_size": rows, "rms_norm_eps": eps, "max_position_embeddings": longest,
        "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True,
    }  # fmt: skip


SETTINGS: dict[str, tuple[DraftFormat, Settings]] = {
    "Cloudriver/MSD-LLaVA1.5-7B": ("msd", sizes(4096, 11008, 32, 32, 32000, 1e-5) | {
        "architectures": ["LlavaLlamaForCausalLM"], "model_type": "llava", "mm_hidden_size": 1024, "use_mm_proj": True,
        "mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2, "rope_scaling": None, "pretraining_tp": 1,
    }),
    "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": ("vispec", sizes(3584, 18944, 28, 28, 152064, longest=8192) | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "rope_theta": 1e6,
        "qkv_bias": True, "max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": False,
    }),
    "AngelSlim/Qwen3-8B_eagle3": ("eagle3", sizes(4096, 12288, 32, 8, 151936, longest=40960) | {
        "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "head_dim": 128, "attention_bias": False,
        "max_window_layers": 36, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "use_sliding_window": False, "draft_vocab_size": 32000, "tie_word_embeddings": False,
    }),
}  # fmt: skip


def tensors(kind: DraftFormat, settings: Settings) -> dict[str, Tensor]:
    """The tensors of such a draft by the names that its authors' module has for them, without memory."""
    hidden, inner, heads = (settings[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    size = settings.get("head_dim", hidden // heads)
    own, kv = heads * size, settings["num_key_value_heads"] * size
    eagle3, layer = kind == "eagle3", "midlayer." if kind == "eagle3" else "layers.0."
    read = 2 * hidden if eagle3 else hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * hidden if eagle3 else 2 * hidden),
        "embed_tokens.weight": (settings["vocab_size"], hidden),
        f"{layer}self_attn.q_proj.weight": (own, read),
        f"{layer}self_attn.k_proj.weight": (kv, read),
        f"{layer}self_attn.v_proj.weight": (kv, read),
        f"{layer}self_attn.o_proj.weight": (hidden, own),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }
    if eagle3:
        shapes |= {f"{name}.weight": (hidden,) for name in (f"{layer}hidden_norm", f"{layer}input_layernorm", "norm")}
        shapes["lm_head.weight"] = (settings["draft_vocab_size"], hidden)
    else:
        shapes["fc.bias"] = (hidden,)
    if settings.get("qkv_bias"):
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (kv if name in "kv" else own,) for name in "qkv"}
    if kind == "vispec":
        shapes |= {"img_fc.weight": (hidden, 2 * hidden), "img_fc.bias": (hidden,), "imadpt.q": (2, heads, size)}
        shapes |= {f"imadpt.{name}_proj.weight": (hidden, hidden) for name in "kvo"}
        shapes |= {f"imadpt.{name}_proj.bias": (hidden,) for name in "kv"}
    found = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    if eagle3:
        found["d2t"] = torch.zeros(settings["draft_vocab_size"], dtype=torch.int64)
    return found
