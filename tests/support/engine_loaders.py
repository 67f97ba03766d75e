"""What two inference engines do with a draft's directory: names, shapes and fields, derived anew from their loaders.

vLLM: ``config/speculative.py``, ``transformers_utils/configs/eagle.py``, ``registry.py``, ``llama_eagle3.py``,
``models/utils.py:process_eagle_weight``. SGLang: ``llama_eagle3.py``, ``eagle_worker.py``. Neither engine runs
here. Where an engine would leave a parameter at random or drop a tensor without a word, an assertion fails.
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
ARCHITECTURE = "LlamaForCausalLMEagle3"  # registered in both


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
    """Return what an engine makes of a draft that is named with the method EAGLE-3."""
    checkpoint = Checkpoint.at(directory)
    fields = dict(checkpoint.settings())
    config = LlamaConfig(**{name: one for name, one in fields.items() if name != "model_type"})
    assert type(AutoConfig.from_pretrained(directory)) is LlamaConfig
    assert fields["architectures"] == [ARCHITECTURE] and config.num_hidden_layers == 1
    layer = "layers.0." if engine == "vllm" else "midlayer."
    tensors = checkpoint.weights(0, print)
    weights = {name.replace("midlayer.", layer): one for name, one in tensors.items() if "t2d" not in name}
    offsets, rows = weights.pop("d2t", None), fields.get("draft_vocab_size") or config.vocab_size
    if offsets is None:
        assert rows == config.vocab_size, "rows would stand for the first tokens"
    else:
        assert (offsets.dtype, offsets.shape) == (torch.int64, (rows,))
    ids = None if offsets is None else tuple((offsets + torch.arange(rows)).tolist())
    wanted = _shapes(config, layer, fields.get("target_hidden_size", config.hidden_size), rows)
    if "embed_tokens.weight" in weights:
        wanted["embed_tokens.weight"] = (config.vocab_size, config.hidden_size)
    assert {name: tuple(one.shape) for name, one in weights.items()} == wanted
    return Served(config, _states(fields, engine), weights, ids)


def _states(fields: Mapping[str, Any], engine: EngineName) -> tuple[int, ...]:
    """Return the hidden states that an engine hands over; vLLM obeys ``eagle_aux_layer_semantics`` where it is."""
    name = "eagle_aux_hidden_state_layer_ids"
    if engine == "sglang":
        return tuple(one + 1 for one in fields["eagle_config"][name])
    shift = {"vllm": 0, "sglang": 1}[fields.get("eagle_aux_layer_semantics") or "vllm"]
    return tuple(one + shift for one in fields[name])


def _shapes(config: LlamaConfig, layer: str, read: int, rows: int) -> dict[str, tuple[int, ...]]:
    """Parameters of a head of ``rows`` tokens behind one Llama layer, which reads an embedding and ``read`` x 3."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    own, shared = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = {
        "self_attn.q_proj.weight": (own, 2 * hidden), "self_attn.k_proj.weight": (shared, 2 * hidden),
        "self_attn.v_proj.weight": (shared, 2 * hidden), "self_attn.o_proj.weight": (hidden, own),
        "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner), "post_attention_layernorm.weight": (hidden,),
        "input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,),
    }  # fmt: skip
    around = {"fc.weight": (hidden, 3 * read), "norm.weight": (hidden,), "lm_head.weight": (rows, hidden)}
    return around | {layer + name: shape for name, shape in shapes.items()}
