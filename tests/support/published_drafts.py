"""``config.json`` of published drafts that read states, as their authors' repositories have it, and their tensors.

Sizes are the published ones: tensors have shapes and no memory. Repositories: Lyn-Lucy/MSD (``EAGLE/eagle/train``),
KangJialiang/ViSpec (``vispec/train``), killthefullmoon/MMSpec (``train/configs``), sgl-project/SpecForge (``configs``),
Tencent/AngelSlim (``…/train/configs``) and SafeAILab/EAGLE (``train``, ``eagle/traineagle3``). Ids of special tokens,
dropout and versions are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specllava.models.drafts.draft_reading import DraftFormat

Settings = dict[str, Any]
QWEN_WINDOWS = {"max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": False}
CHUNKED = {"type": "mrope", "mrope_section": [16, 24, 24]}
IN_TURN = {"type": "default", "rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}


def sizes(hidden: int, inner: int, heads: int, kv: int, rows: int, eps: float = 1e-6, longest: int = 4096) -> Settings:
    """The keys that all of them have."""
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv,
        "num_hidden_layers": 1, "vocab_size": rows, "rms_norm_eps": eps, "max_position_embeddings": longest,
        "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True,
    }  # fmt: skip


MSD_LLAVA: Settings = {
    "architectures": ["LlavaLlamaForCausalLM"], "model_type": "llava", "mm_hidden_size": 1024, "use_mm_proj": True,
    "mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2, "rope_scaling": None, "pretraining_tp": 1,
    "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
MSD_7B = MSD_LLAVA | sizes(4096, 11008, 32, 32, 32000, 1e-5)
MSD_13B = MSD_LLAVA | sizes(5120, 13824, 40, 40, 32000, 1e-5)
MSD_QWEN: Settings = QWEN_WINDOWS | sizes(3584, 18944, 28, 4, 152064, longest=32768) | {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "rope_theta": 1e6,
    "rope_scaling": CHUNKED, "image_token_id": 151655,
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "hidden_size": 3584},
}  # fmt: skip
VISPEC_LLAVA: Settings = {
    "architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next", "rope_scaling": None,
    "pretraining_tp": 1, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
VISPEC_7B = VISPEC_LLAVA | sizes(4096, 11008, 32, 32, 32064, 1e-5)
VISPEC_13B = VISPEC_LLAVA | sizes(5120, 13824, 40, 40, 32064, 1e-5)
VISPEC_QWEN: Settings = QWEN_WINDOWS | {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "rope_theta": 1e6,
    "qkv_bias": True, "torch_dtype": "bfloat16",
}  # fmt: skip
VISPEC_QWEN_3B = VISPEC_QWEN | sizes(2048, 11008, 16, 16, 151936, longest=8192)
VISPEC_QWEN_7B = VISPEC_QWEN | sizes(3584, 18944, 28, 28, 152064, longest=8192)
MMSPEC_LLAVA: Settings = sizes(4096, 11008, 32, 32, 32064) | {
    "architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32064,
}  # fmt: skip
MMSPEC_LLAVA_3 = MMSPEC_LLAVA | {"architectures": ["LlavaForConditionalGeneration"]}
MMSPEC_QWEN: Settings = sizes(3584, 18944, 28, 4, 152064) | {"architectures": ["LlamaForCausalLM"]}
MMSPEC_QWEN_3 = MMSPEC_QWEN | {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "max_position_embeddings": 32768,
    "draft_vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
SPECFORGE: Settings = QWEN_WINDOWS | sizes(3584, 18944, 28, 4, 152064, longest=8192) | {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "target_model_type": "qwen2_5_vl",
    "head_dim": 128, "attention_bias": False, "rope_scaling": CHUNKED, "rope_theta": 1000000, "draft_vocab_size": 32000,
    "tie_word_embeddings": False, "pretraining_tp": 1,
}  # fmt: skip
ANGELSLIM: Settings = {
    "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "head_dim": 128, "attention_bias": False,
    "rope_scaling": IN_TURN, "rope_theta": 5000000, "draft_vocab_size": 32000, "modal_type": "VLM",
    "tie_word_embeddings": True,
}  # fmt: skip
ANGELSLIM_QWEN3: Settings = sizes(4096, 12288, 32, 8, 151936, longest=40960) | {
    "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "head_dim": 128, "attention_bias": False,
    "max_window_layers": 36, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "use_sliding_window": False, "draft_vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
EAGLE_VICUNA: Settings = {  # which names no key-value heads: as many as heads
    key: value for key, value in sizes(4096, 11008, 32, 32, 32000, longest=2048).items() if key != "num_key_value_heads"
} | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
EAGLE3_LLAMA: Settings = sizes(4096, 14336, 32, 8, 128256, 1e-5, 2048) | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
    "draft_vocab_size": 32000,
}  # fmt: skip
ANGELSLIM_4B = ANGELSLIM | sizes(2560, 9728, 32, 8, 151936, longest=262144)
ANGELSLIM_2B = ANGELSLIM | sizes(2048, 6144, 16, 8, 151936, longest=262144)  # made of the one for 4B

DRAFTS: dict[str, tuple[DraftFormat, Settings]] = {
    "Cloudriver/MSD-LLaVA1.5-7B": ("msd", MSD_7B),
    "lucylyn/MSD-LLaVA1.5-7B": ("msd", MSD_7B),
    "lucylyn/MSD-LLaVA1.5-13B": ("msd", MSD_13B),
    "lucylyn/MSD-Qwen2VL-7B-Instruct": ("msd", MSD_QWEN),
    "Cloudriver/MSD-Qwen2.5-VL-7B-Instruct": ("msd", MSD_QWEN),
    "Cloudriver/ViSpec-LLaVA1.5-7B": ("vispec", MMSPEC_LLAVA),
    "JLKang/ViSpec-llava-1.5-7b-hf": ("vispec", VISPEC_7B),  # there is none for 1.5: the one for 1.6
    "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf": ("vispec", VISPEC_7B),
    "JLKang/ViSpec-llava-v1.6-vicuna-13b-hf": ("vispec", VISPEC_13B),
    "JLKang/ViSpec-Qwen2.5-VL-3B-Instruct": ("vispec", VISPEC_QWEN_3B),
    "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": ("vispec", VISPEC_QWEN_7B),
    "Cloudriver/ViSpec-Qwen2.5-VL-7B-Instruct": ("vispec", MMSPEC_QWEN),
    "Cloudriver/EAGLE-LLaVA-1.5-7B": ("eagle", MMSPEC_LLAVA),
    "Cloudriver/EAGLE-Qwen2.5-VL-7B-Instruct": ("eagle", MMSPEC_QWEN),
    "Cloudriver/EAGLE3-LLaVA1.5-7B": ("eagle3", MMSPEC_LLAVA_3),
    "Cloudriver/EAGLE3-Qwen2.5-VL-7B-Instruct": ("eagle3", MMSPEC_QWEN_3),
    "Rayzl/qwen2.5-vl-7b-eagle3-sgl": ("eagle3", SPECFORGE),
    "AngelSlim/Qwen3-VL-2B-Instruct_eagle3": ("eagle3", ANGELSLIM_2B),
    "AngelSlim/Qwen3-VL-4B-Instruct_eagle3": ("eagle3", ANGELSLIM_4B),
    "yuhuili/EAGLE-Vicuna-7B-v1.3": ("eagle", EAGLE_VICUNA),
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": ("eagle3", EAGLE3_LLAMA),
    "AngelSlim/Qwen3-8B_eagle3": ("eagle3", ANGELSLIM_QWEN3),
}


def tensors(kind: DraftFormat, settings: Settings) -> dict[str, Tensor]:
    """The tensors of such a draft by the names that its authors' module has for them, without memory."""
    hidden, inner, rows = settings["hidden_size"], settings["intermediate_size"], settings["vocab_size"]
    size = settings.get("head_dim", hidden // settings["num_attention_heads"])
    heads = settings["num_attention_heads"]
    own, kv = heads * size, settings.get("num_key_value_heads", heads) * size
    eagle3, layer = kind == "eagle3", "midlayer." if kind == "eagle3" else "layers.0."
    read = 2 * hidden if eagle3 else hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * hidden if eagle3 else 2 * hidden),
        "embed_tokens.weight": (rows, hidden),
        f"{layer}self_attn.q_proj.weight": (own, read),
        f"{layer}self_attn.k_proj.weight": (kv, read),
        f"{layer}self_attn.v_proj.weight": (kv, read),
        f"{layer}self_attn.o_proj.weight": (hidden, own),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        f"{layer}post_attention_layernorm.weight": (hidden,),
    }
    if not eagle3:
        shapes["fc.bias"] = (hidden,)
    if settings.get("qkv_bias") or (kind == "msd" and settings["model_type"] == "qwen2_vl"):
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (kv if name in "kv" else own,) for name in "qkv"}
    if kind == "msd" and settings["model_type"] == "qwen2_vl":
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
    if kind == "vispec":
        heads = settings["num_attention_heads"]
        shapes |= {"img_fc.weight": (hidden, 2 * hidden), "img_fc.bias": (hidden,), "imadpt.q": (2, heads, size)}
        shapes |= {f"imadpt.{name}_proj.weight": (hidden, hidden) for name in "kvo"}
        if settings.get("qkv_bias"):
            shapes |= {f"imadpt.{name}_proj.bias": (hidden,) for name in "kv"}
    found = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    if eagle3:
        scored = settings["draft_vocab_size"]
        norms = (f"{layer}hidden_norm", f"{layer}input_layernorm", "norm")
        found |= {f"{name}.weight": torch.empty(hidden, device="meta") for name in norms}
        found["d2t"] = torch.zeros(scored, dtype=torch.int64)
        found["lm_head.weight"] = torch.empty((scored, hidden), device="meta")
    return found
