"""``config.json`` of published drafts that read states, as their authors' repositories have it, and their tensors.

Sizes are the published ones: tensors have shapes and no memory. Repositories: Lyn-Lucy/MSD (``EAGLE/eagle/train``),
KangJialiang/ViSpec (``vispec/train``) and Tencent/AngelSlim (``…/train/configs``). Ids of special tokens, dropout and
versions are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specllava.models.options import DraftFormat

Settings = dict[str, Any]
QWEN_WINDOWS = {"max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": False}


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
VISPEC_QWEN: Settings = QWEN_WINDOWS | {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "rope_theta": 1e6,
    "qkv_bias": True, "torch_dtype": "bfloat16",
}  # fmt: skip
VISPEC_QWEN_7B = VISPEC_QWEN | sizes(3584, 18944, 28, 28, 152064, longest=8192)
ANGELSLIM_QWEN3: Settings = sizes(4096, 12288, 32, 8, 151936, longest=40960) | {
    "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "head_dim": 128, "attention_bias": False,
    "max_window_layers": 36, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "use_sliding_window": False, "draft_vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
DRAFTS: dict[str, tuple[DraftFormat, Settings]] = {
    "Cloudriver/MSD-LLaVA1.5-7B": ("msd", MSD_7B),
    "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": ("vispec", VISPEC_QWEN_7B),
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
    if settings.get("qkv_bias"):
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (kv if name in "kv" else own,) for name in "qkv"}
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
