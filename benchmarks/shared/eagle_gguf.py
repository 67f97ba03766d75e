"""An EAGLE-3 draft of this project as a GGUF file, which llama.cpp drafts with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from safetensors.torch import load_file

ARCHITECTURE: Final = "eagle3"
NAMES: Final = {  # of tensors: here, and in GGUF files
    "fc": "fc", "norm": "output_norm", "lm_head": "output",
    "layers.0.input_layernorm": "blk.0.attn_norm", "layers.0.hidden_norm": "blk.0.attn_norm_2",
    "layers.0.self_attn.q_proj": "blk.0.attn_q", "layers.0.self_attn.k_proj": "blk.0.attn_k",
    "layers.0.self_attn.v_proj": "blk.0.attn_v", "layers.0.self_attn.o_proj": "blk.0.attn_output",
    "layers.0.post_attention_layernorm": "blk.0.ffn_norm", "layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "layers.0.mlp.up_proj": "blk.0.ffn_up", "layers.0.mlp.down_proj": "blk.0.ffn_down",
}  # fmt: skip


def write_eagle3(draft: Path, target: Path, output: Path) -> None:
    """Write a draft in float16.

    Args:
        draft: directory of one layer without biases and further norms, as that of the pair smol.
        target: GGUF file whose tokenizer it has.
    """
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    weights = load_file(draft / "model.safetensors")
    file = GGUFWriter(output, ARCHITECTURE)
    file.add_block_count(1)
    file.add_vocab_size(config["vocab_size"])
    file.add_context_length(config["max_position_embeddings"])
    file.add_embedding_length(config["hidden_size"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_head_count(config["num_attention_heads"])
    file.add_head_count_kv(config["num_key_value_heads"])
    for add in (file.add_key_length, file.add_value_length, file.add_rope_dimension_count):
        add(config["head_dim"])
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    file.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    file.add_array(f"{ARCHITECTURE}.target_layers", config["state_layers"])
    file.add_uint32(f"{ARCHITECTURE}.target_hidden_size", config["target_hidden_size"])
    for name, value in GGUFReader(target).fields.items():
        if name.startswith("tokenizer."):
            kind = value.types[0]
            inside = value.types[1] if kind == GGUFValueType.ARRAY else None
            file.add_key_value(name, value.contents(), kind, inside)
    for name, other in NAMES.items():
        weight = weights[f"{name}.weight"]
        file.add_tensor(f"{other}.weight", (weight.half() if weight.dim() > 1 else weight.float()).numpy())
    tokens = weights["d2t"]  # distances from the draft's numbers of tokens to the target's
    file.add_tensor("d2t", (tokens + torch.arange(len(tokens))).numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
