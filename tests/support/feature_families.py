"""Small random targets of families that transformers encodes, and the layouts of drafts that are published for such.

The layouts are those of KangJialiang/ViSpec (``vispec/train/qwen2.5_vl_7B_config.json``), Lyn-Lucy/MSD
(``EAGLE/eagle/train/qwen2vl_config.json``), MMSpec's EAGLE (``train/configs/qwen2.5vl_config.json``), SpecForge
(``configs/qwen2-5-vl-7b-eagle3.json``), AngelSlim (``…/qwen3-vl-4b-eagle3-mrope.json``) and vllm-project/speculators.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from support import checkpoints, families, family_configs, family_kinds
from support.checkpoints import PADDED
from support.family_kinds import KINDS, FamilyName
from support.feature_checkpoints import HEADS, HIDDEN, IDS, LAYERS, SMALL, USUAL, Layout

CALM = 0.004  # of a target's layers: its next token follows mostly from the last one
QWEN: dict[str, Any] = {
    "attention_dropout": 0.0, "max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": False,
}  # fmt: skip
CHUNKED = {"type": "mrope", "mrope_section": [2, 3, 3]}
IN_TURN = {"type": "default", "rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}

VISPEC = Layout(
    "vispec", file="bin", qkv_bias=True, theta=1e6,
    says={**QWEN, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
          "qkv_bias": True, "rope_theta": 1e6},
)  # fmt: skip
MSD = Layout(
    "msd", file="bin", kv=1, qkv_bias=True, input_norm=True, theta=1e6,
    says={**QWEN, "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "rope_theta": 1e6,
          "rope_scaling": CHUNKED, "vision_config": {"depth": 32, "embed_dim": 1280, "patch_size": 14}},
)  # fmt: skip
EAGLE = Layout("eagle", file="bin", kv=1, front="module.", again=True, says={"model_type": None})
EAGLE3 = Layout("eagle3", rows=None, layer="midlayer.", head=SMALL, kv=1, bias=False, states=tuple(USUAL))
SPECFORGE = replace(
    EAGLE3, theta=1e6, section=(2, 3, 3),
    says={**QWEN, "attention_bias": False, "head_dim": 16, "rope_scaling": CHUNKED, "rope_theta": 1000000,
          "target_model_type": "qwen2_5_vl"},
)  # fmt: skip
ANGELSLIM = replace(
    EAGLE3, theta=5e6, section=(4, 2, 2), interleaved=True,
    says={"architectures": ["Eagle3LlamaForCausalLM"], "dtype": "bfloat16", "head_dim": 16, "modal_type": "VLM",
          "rope_scaling": IN_TURN, "rope_theta": 5000000, "target_model_type": "qwen3_vl", "tie_word_embeddings": True},
)  # fmt: skip
SPECULATORS = replace(
    EAGLE3, layer="layers.0.", rows=PADDED, ids={IDS: [1, 4, 6]}, states=(1, 4, 6), theta=5e6,
    flags={"norm_before_residual": True}, says={"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
)  # fmt: skip
WIDE = replace(
    EAGLE3, width=64, rows=PADDED, head=PADDED, qkv_bias=True,
    says={"attention_bias": True, "head_dim": 16, "target_hidden_size": HIDDEN},
)  # fmt: skip


def write_target(directory: Path, family: FamilyName, seed: int = 0) -> Path:
    """A random target of the sizes that these layouts are for, and calm."""
    kind = KINDS[family]
    padding = PADDED - family_kinds.WORDS - len(kind.first) - len(kind.last)
    sizes = family_configs.Layout(layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=1, padding=padding)
    families.write_checkpoint(directory, family, seed, sizes)
    weights = checkpoints.weights_of(directory)
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    adding = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    calm = {name: CALM * one for name, one in weights.items() if ".layers." in name and name.endswith(adding)}
    checkpoints.write_weights(directory, weights | calm)
    return directory
