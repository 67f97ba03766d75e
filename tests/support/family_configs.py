"""The ``config.json`` of each family as it is published, with small sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.family_kinds import CONTEXT, KINDS, QWEN3S, QWENS, WORDS, FamilyName, TokensName, token_ids


@dataclass(frozen=True)
class Layout:
    """Sizes of a checkpoint: decoder, tower, rows of the embeddings behind the last token."""

    layers: int = 2
    hidden: int = 48
    heads: int = 4
    kv_heads: int = 2
    vision: int = 32
    side: int = 28
    patch: int = 7
    scale: int = 2  # patches on a side that become one slot
    padding: int = 24
    tied: bool = False
    window: int = 0  # of the decoder's last layer, where the family has sliding windows; 0 for full attention


SPEAKER = Layout(layers=1, hidden=32, heads=2, kv_heads=1, padding=8)  # of a language model that a draft is made of


def text_fields(family: TokensName, layout: Layout) -> dict[str, Any]:
    """The decoder's part of ``config.json``."""
    qwens = {"llava_onevision": "qwen2", "internvl": "qwen2"} | {name: f"{name}_text" for name in QWEN3S}
    flat = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl"}  # whose fields lie beside the tower's
    others = {"mistral": "mistral", "gemma3": "gemma3_text"}
    kind = (qwens | flat | others).get(family, "llama")
    fields: dict[str, Any] = {
        "hidden_size": layout.hidden,
        "intermediate_size": 2 * layout.hidden,
        "max_position_embeddings": CONTEXT,
        "model_type": kind,
        "num_attention_heads": layout.heads,
        "num_hidden_layers": layout.layers,
        "num_key_value_heads": layout.kv_heads,
        "tie_word_embeddings": tied(family, layout),
        "vocab_size": rows_of(family, layout),
    }
    if kind == "mistral":  # whose heads are not as wide as the hidden state over their number
        fields |= {"head_dim": 16, "sliding_window": None, "rope_theta": 1e9}
    if family == "gemma3":  # likewise; every second layer slides, and the others' rotary angles are scaled
        fields |= {
            "head_dim": 16, "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4, "rope_theta": 1e6,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": layout.window or 12,
            "sliding_window_pattern": 2,
        }  # fmt: skip
    if kind == "qwen2" or family in flat:
        fields |= {"use_sliding_window": False, "max_window_layers": layout.layers, "rope_theta": 1e6}
    if family in flat and layout.window:
        fields |= {"use_sliding_window": True, "max_window_layers": layout.layers - 1, "sliding_window": layout.window}
    if family in QWEN3S:  # whose heads, too, have a width of their own
        fields |= {"head_dim": 16, "rope_theta": 5e6}
    if family == "qwen3_vl_moe":
        fields |= {
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": layout.hidden // 2 + 1,
            "norm_topk_prob": True, "num_experts": layout.heads + 3, "num_experts_per_tok": 2,
        }  # fmt: skip
    if family in QWENS:
        ids = token_ids(family)
        fields |= {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
        pairs = fields.get("head_dim", layout.hidden // layout.heads) // 2
        side = pairs // 3  # of the pairs of numbers that are rotated together, in height and in width
        rope: dict[str, Any] = {"mrope_section": [pairs - 2 * side, side, side]}
        fields["rope_scaling"] = rope | (
            {"rope_type": "default", "mrope_interleaved": True} if family in QWEN3S else {"type": "mrope"}
        )
    return fields


def tied(family: TokensName, layout: Layout) -> bool:
    return layout.tied or family == "gemma3"


def rows_of(family: TokensName, layout: Layout) -> int:
    kind = KINDS[family]
    return WORDS + len(kind.first) + len(kind.last) + layout.padding


def config_fields(family: FamilyName, layout: Layout) -> dict[str, Any]:
    """A published ``config.json`` with small sizes."""
    ids, image = token_ids(family), token_ids(family)[KINDS[family].image]
    vision: dict[str, Any] = {
        "hidden_size": layout.vision,
        "image_size": layout.side,
        "intermediate_size": 2 * layout.vision,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": layout.patch,
    }
    fields = {
        "architectures": [f"{family}ForConditionalGeneration"],
        "model_type": family,
        "text_config": text_fields(family, layout),
        "tie_word_embeddings": tied(family, layout),
        "torch_dtype": "float16",
        "vision_config": vision,
    }
    match family:
        case "llava_onevision":
            vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
            fields |= {
                "image_grid_pinpoints": grid(layout), "image_token_index": image, "projector_hidden_act": "gelu",
                "use_image_newline_parameter": True, "video_token_index": ids["<video>"],
                "vision_aspect_ratio": ASPECT, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            }  # fmt: skip
        case "internvl":
            vision |= {"model_type": "internvl_vision", "norm_type": "layer_norm", "use_mean_pooling": True}
            vision |= {name: [vision[name]] * 2 for name in ("image_size", "patch_size")}
            fields |= {
                "downsample_ratio": 1 / layout.scale, "image_seq_length": slots(layout), "image_token_id": image,
                "projector_hidden_act": "gelu", "vision_feature_layer": -1,
                "vision_feature_select_strategy": "default",
            }  # fmt: skip
        case "gemma3":
            vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
            fields |= {
                "boi_token_index": ids["<start_of_image>"], "eoi_token_index": ids["<end_of_image>"],
                "image_token_index": image, "mm_tokens_per_image": slots(layout),
            }  # fmt: skip
        case "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe":
            fields = fields | qwen_fields(family, layout)
        case _:
            vision |= {"model_type": family if family == "idefics3" else "smolvlm_vision"}
            fields |= {"image_token_id": image, "scale_factor": layout.scale, "pad_token_id": ids[KINDS[family].eos]}
    return fields


def qwen_fields(family: FamilyName, layout: Layout) -> dict[str, Any]:
    """What a Qwen's ``config.json`` has besides."""
    ids = token_ids(family)
    vision: dict[str, Any] = {
        "depth": 2, "model_type": family, "num_heads": 2, "patch_size": layout.patch,
        "spatial_merge_size": layout.scale, "temporal_patch_size": 2,
    }  # fmt: skip
    match family:
        case "qwen2_vl":
            vision |= {"embed_dim": layout.vision, "hidden_size": layout.hidden, "mlp_ratio": 2}
        case "qwen2_5_vl":
            vision |= {"hidden_act": "silu", "fullatt_block_indexes": [1]}
            vision |= {"window_size": 2 * layout.scale * layout.patch}
        case _:
            deep = list(range(min(2, layout.layers)))
            vision |= {"deepstack_visual_indexes": deep, "num_position_embeddings": 16}
    if family != "qwen2_vl":
        vision |= {"hidden_size": layout.vision, "intermediate_size": 2 * layout.vision}
        vision |= {"out_hidden_size": layout.hidden}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {f"vision_{end}_token_id": f"<|vision_{end}|>" for end in ("start", "end")}
    own: dict[str, Any] = {"vision_config": vision} | {name: ids[token] for name, token in names.items()}
    if family in QWEN3S:
        return own
    return text_fields(family, layout) | own | {"model_type": family, "text_config": None}


ASPECT = "anyres_max_2"  # as anyres_max_9: more tiles are shrunk to as many patches


def grid(layout: Layout) -> list[list[int]]:
    return [[layout.side * high, layout.side * wide] for high in (1, 2, 3) for wide in (1, 2, 3)]


def slots(layout: Layout) -> int:
    """Image slots of a square."""
    return (layout.side // layout.patch // layout.scale) ** 2
