"""What two inference engines do with a draft's directory: names, shapes and fields, derived anew from their loaders.

vLLM: ``config/speculative.py``, ``transformers_utils/configs/eagle.py``, ``registry.py``, ``llama_eagle3.py``,
``models/utils.py:process_eagle_weight``. SGLang: ``llama_eagle3.py``, ``eagle_worker.py``. Neither engine runs
here. Where an engine would leave a parameter at random or drop a tensor without a word, this raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig

from specllava.models.checkpoint import Checkpoint

EngineName = Literal["vllm", "sglang"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
Shapes = dict[str, tuple[int, ...]]
ARCHITECTURE = "LlamaForCausalLMEagle3"  # registered in both


class Unloadable(Exception):
    """An engine would stop, or serve weights that are not the draft's."""


@dataclass(frozen=True)
class Served:
    """A draft as an engine holds it.

    Args:
        states: hidden states of the target that it is given, as transformers numbers them.
        weights: by the engine's names, without what it takes from the target.
        ids: of the target's tokens that the rows of its head score; ``None`` for all.
    """

    config: LlamaConfig
    states: tuple[int, ...]
    weights: dict[str, Tensor]
    ids: tuple[int, ...] | None = None


def served(directory: Path, engine: EngineName) -> Served:
    """Return what an engine makes of a draft that is named with the method EAGLE-3.

    Raises:
        Unloadable: it makes nothing of it, or something else.
    """
    fields = dict(Checkpoint.at(directory).settings())
    config = LlamaConfig(**{name: one for name, one in fields.items() if name != "model_type"})
    assert type(AutoConfig.from_pretrained(directory)) is LlamaConfig
    (architecture,) = fields["architectures"]
    if architecture != ARCHITECTURE:
        raise Unloadable(f"{engine} has no class {architecture}")
    tensors = Checkpoint.at(directory).weights(0, print)
    weights, ids = _load(tensors, config, fields, engine)
    return Served(config, _states(fields, engine), weights, ids)


def _states(fields: Mapping[str, Any], engine: EngineName) -> tuple[int, ...]:
    """Return the hidden states that an engine hands over; vLLM obeys ``eagle_aux_layer_semantics`` where it is."""
    name = "eagle_aux_hidden_state_layer_ids"
    if engine == "sglang":
        return tuple(one + 1 for one in fields["eagle_config"][name])
    shift = {"vllm": 0, "sglang": 1}[fields.get("eagle_aux_layer_semantics") or "vllm"]
    return tuple(one + shift for one in fields[name])


def _layer(config: LlamaConfig, width: int) -> Shapes:
    """A Llama's layer without an input norm, queries, keys and values made of ``width`` numbers."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    rows, shared = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes: Shapes = {
        "self_attn.q_proj.weight": (rows, width), "self_attn.k_proj.weight": (shared, width),
        "self_attn.v_proj.weight": (shared, width), "self_attn.o_proj.weight": (hidden, rows),
        "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    if getattr(config, "attention_bias", False) or getattr(config, "bias", False):
        shapes |= {f"self_attn.{one}_proj.bias": shapes[f"self_attn.{one}_proj.weight"][:1] for one in "qkvo"}
    return shapes


def _load(
    tensors: Mapping[str, Tensor], config: LlamaConfig, fields: Mapping[str, Any], engine: EngineName
) -> tuple[dict[str, Tensor], tuple[int, ...] | None]:
    """Both have one layer, which vLLM numbers, and a norm in front of each of its two inputs."""
    if config.num_hidden_layers != 1:
        raise Unloadable("one layer alone")
    hidden, read = config.hidden_size, fields.get("target_hidden_size", config.hidden_size)
    layer = _layer(config, 2 * hidden) | {"input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    front = "layers.0." if engine == "vllm" else "midlayer."
    rows = fields.get("draft_vocab_size") or config.vocab_size
    wanted: Shapes = {"fc.weight": (hidden, 3 * read), "norm.weight": (hidden,), "lm_head.weight": (rows, hidden)}
    wanted |= {front + name: shape for name, shape in layer.items()}
    taken = {name.replace("midlayer.", front): one for name, one in tensors.items() if "t2d" not in name}
    if "embed_tokens.weight" in taken:
        wanted["embed_tokens.weight"] = (config.vocab_size, hidden)
    offsets = taken.pop("d2t", None)
    _check_filled(taken, wanted)
    return taken, _ids(offsets, rows, config.vocab_size)


def _ids(offsets: Tensor | None, rows: int, vocabulary: int) -> tuple[int, ...] | None:
    if offsets is None:
        if rows != vocabulary:
            raise Unloadable(f"{rows} rows of a head stand for the first {rows} tokens")
        return None
    if offsets.shape != (rows,) or offsets.dtype != torch.int64:
        raise Unloadable(f"d2t of shape {tuple(offsets.shape)}, {offsets.dtype}")
    return tuple((offsets + torch.arange(rows)).tolist())


def _check_filled(tensors: Mapping[str, Tensor], wanted: Shapes) -> None:
    """Every parameter gets a tensor, and every tensor has one."""
    unknown, missing = sorted(tensors.keys() - wanted.keys()), sorted(wanted.keys() - tensors.keys())
    if unknown or missing:
        raise Unloadable(f"no parameter for {unknown}, nothing for {missing}")
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise Unloadable(f"{name} of shape {tuple(tensors[name].shape)}, not {shape}")
