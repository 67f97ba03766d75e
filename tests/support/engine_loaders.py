"""What two inference engines do with a draft's directory: names, shapes and fields, derived anew from their loaders.

vLLM: ``config/speculative.py``, ``transformers_utils/configs/eagle.py`` and ``speculators/algos.py``, ``registry.py``,
``llama_eagle.py``, ``llama_eagle3.py``, ``models/utils.py:process_eagle_weight``. SGLang: ``llama_eagle.py``,
``llama_eagle3.py``, ``eagle_worker.py``. Neither engine runs here. Where an engine would leave a parameter at random or
drop a tensor without a word, this raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig

from specllava.models.checkpoints.checkpoint import Checkpoint

EngineName = Literal["vllm", "sglang"]
Shapes = dict[str, tuple[int, ...]]
CLASSES: dict[EngineName, dict[str, str]] = {  # registered architectures, and the method that each serves
    "vllm": {
        "EagleLlamaForCausalLM": "eagle",
        "Eagle3LlamaForCausalLM": "eagle3",
        "LlamaForCausalLMEagle3": "eagle3",
    },
    "sglang": {"LlamaForCausalLMEagle": "eagle", "LlamaForCausalLMEagle3": "eagle3"},
}


class Unloadable(Exception):
    """An engine would stop, or serve weights that are not the draft's."""


@dataclass(frozen=True)
class Served:
    """A draft as an engine holds it.

    Args:
        states: hidden states of the target that it is given, as transformers numbers them; empty for the last.
        weights: by the engine's names, without what it takes from the target.
        ids: of the target's tokens that the rows of its head score; ``None`` for all.
    """

    architecture: str
    config: LlamaConfig
    states: tuple[int, ...]
    weights: dict[str, Tensor]
    ids: tuple[int, ...] | None = None


def served(directory: Path, engine: EngineName, method: Literal["eagle", "eagle3"]) -> Served:
    """Return what an engine makes of a draft that is named with a method.

    Raises:
        Unloadable: it makes nothing of it, or something else.
    """
    settings = Checkpoint.at(directory).settings()
    fields = _of_speculators(settings) if "speculators_model_type" in settings else dict(settings)
    if "speculators_model_type" in settings and engine == "sglang":
        raise Unloadable("no architecture of that layout is registered")
    config = LlamaConfig(**{name: one for name, one in fields.items() if name != "model_type"})
    if "speculators_model_type" not in settings:
        assert type(AutoConfig.from_pretrained(directory)) is LlamaConfig
        if engine == "vllm":
            fields["architectures"] = [_renamed(one, method) for one in fields["architectures"]]
    (architecture,) = fields["architectures"]
    if CLASSES[engine].get(architecture) != method:
        raise Unloadable(f"{engine} has no class {architecture} for {method}")
    tensors = Checkpoint.at(directory).weights(2**40, lambda line: None)
    if method == "eagle":
        _check_states(fields, ())
        return Served(architecture, config, (), _eagle(tensors, config, engine))
    load = _vllm_eagle3 if engine == "vllm" else _sglang_eagle3
    weights, ids = load(tensors, config, fields)
    return Served(architecture, config, _states(fields, engine), weights, ids)


def _of_speculators(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that vLLM reads of the speculators layout: nested ones and those that it copies."""
    if settings["speculators_model_type"] != "eagle3" or not settings["speculators_config"]["verifier"]["name_or_path"]:
        raise Unloadable("no speculator of that type, or none with a target")
    if settings["speculators_config"]["proposal_methods"][0]["speculative_tokens"] < 1:
        raise Unloadable("no token would be guessed")
    fields = dict(settings["transformer_layer_config"])
    if fields["model_type"] != "llama":
        raise Unloadable(f"no class for layers of a {fields['model_type']}")
    fields["draft_vocab_size"] = settings.get("draft_vocab_size")
    if settings.get("target_hidden_size") is not None:
        fields["target_hidden_size"] = settings["target_hidden_size"]
    fields["norm_before_residual"] = settings.get("norm_before_residual", True)
    for name in ("norm_before_fc", "fc_norm", "norm_output"):
        fields[name] = settings.get(name, False)
    fields["eagle_aux_hidden_state_layer_ids"] = settings["eagle_aux_hidden_state_layer_ids"]
    return fields | {"architectures": ["Eagle3LlamaForCausalLM"]}


def _renamed(architecture: str, method: str) -> str:
    if method == "eagle":
        return architecture if architecture.startswith("Eagle") else f"Eagle{architecture}"
    known = architecture.startswith("Eagle3") or architecture.endswith("Eagle3")
    return architecture if known else f"Eagle3{architecture}"


def _states(fields: Mapping[str, Any], engine: EngineName) -> tuple[int, ...]:
    """Return the hidden states that an engine hands over; vLLM obeys ``eagle_aux_layer_semantics`` where it is."""
    name = "eagle_aux_hidden_state_layer_ids"
    if engine == "sglang":
        return tuple(one + 1 for one in fields["eagle_config"][name])
    shift = {"vllm": 0, "sglang": 1}[fields.get("eagle_aux_layer_semantics") or "vllm"]
    return tuple(one + shift for one in fields[name])


def _check_states(fields: Mapping[str, Any], wanted: tuple[int, ...]) -> None:
    if tuple(fields.get("eagle_aux_hidden_state_layer_ids", ())) != wanted:
        raise Unloadable("EAGLE-1 is given the last state alone")


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


def _eagle(tensors: Mapping[str, Tensor], config: LlamaConfig, engine: EngineName) -> dict[str, Tensor]:
    """EAGLE-1: both engines take embeddings and head from the target, vLLM unless the file has embeddings."""
    hidden = config.hidden_size
    wanted: Shapes = {"fc.weight": (hidden, 2 * hidden)}
    if engine == "sglang":
        wanted["fc.bias"] = (hidden,)
    for number in range(config.num_hidden_layers):
        layer = _layer(config, hidden) | ({"input_layernorm.weight": (hidden,)} if number else {})
        wanted |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    taken = dict(tensors)
    embeddings = taken.pop("embed_tokens.weight", None)
    if embeddings is not None and engine == "vllm":
        raise Unloadable("embed_tokens counts as the draft's own, and is not read")
    if embeddings is not None and embeddings.shape != (config.vocab_size, hidden):
        raise Unloadable(f"embed_tokens of shape {tuple(embeddings.shape)}")
    return _filled(taken, wanted, lambda name: name)


def _vllm_eagle3(
    tensors: Mapping[str, Tensor], config: LlamaConfig, fields: Mapping[str, Any]
) -> tuple[dict[str, Tensor], tuple[int, ...] | None]:
    hidden, read = config.hidden_size, fields.get("target_hidden_size", config.hidden_size)
    wanted = _ends(config, fields, 3 * read)
    for number in range(config.num_hidden_layers):
        layer = _layer(config, hidden if number else 2 * hidden) | {"input_layernorm.weight": (hidden,)}
        if number == 0:  # later layers have one, which they do not run
            layer["hidden_norm.weight"] = (hidden,)
        wanted |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    if fields.get("norm_before_fc"):
        wanted["input_norm.weight"] = (3 * read,)
    if fields.get("fc_norm"):
        wanted |= {f"fc_norm.{number}.weight": (read,) for number in range(3)}
    taken = {name: one for name, one in tensors.items() if "t2d" not in name}
    if "embed_tokens.weight" in taken:
        wanted["embed_tokens.weight"] = (config.vocab_size, hidden)
    offsets = taken.pop("d2t", None)
    return _filled(taken, wanted, lambda name: name.replace("midlayer.", "layers.0.")), _ids(offsets, config, fields)


def _sglang_eagle3(
    tensors: Mapping[str, Tensor], config: LlamaConfig, fields: Mapping[str, Any]
) -> tuple[dict[str, Tensor], tuple[int, ...] | None]:
    if config.num_hidden_layers != 1:
        raise Unloadable("one layer alone")
    hidden, read = config.hidden_size, fields.get("target_hidden_size", config.hidden_size)
    norms: Shapes = {"input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    layer = _layer(config, 2 * hidden) | norms
    wanted = _ends(config, fields, 3 * read) | {f"midlayer.{name}": shape for name, shape in layer.items()}
    taken = {name: one for name, one in tensors.items() if "t2d" not in name}
    if "embed_tokens.weight" in taken:
        wanted["embed_tokens.weight"] = (config.vocab_size, hidden)
    offsets = taken.pop("d2t", None)
    return _filled(taken, wanted, lambda name: name), _ids(offsets, config, fields)


def _ends(config: LlamaConfig, fields: Mapping[str, Any], read: int) -> Shapes:
    rows = fields.get("draft_vocab_size") or config.vocab_size
    return {
        "fc.weight": (config.hidden_size, read),
        "norm.weight": (config.hidden_size,),
        "lm_head.weight": (rows, config.hidden_size),
    }


def _ids(offsets: Tensor | None, config: LlamaConfig, fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    rows = fields.get("draft_vocab_size") or config.vocab_size
    if offsets is None:
        if rows != config.vocab_size:
            raise Unloadable(f"{rows} rows of a head stand for the first {rows} tokens")
        return None
    if offsets.shape != (rows,) or offsets.dtype != torch.int64:
        raise Unloadable(f"d2t of shape {tuple(offsets.shape)}, {offsets.dtype}")
    return tuple((offsets + torch.arange(rows)).tolist())


def _filled(tensors: Mapping[str, Tensor], wanted: Shapes, renamed: Callable[[str], str]) -> dict[str, Tensor]:
    """Return the tensors by their parameters' names; every parameter gets one, and every tensor has one."""
    found = {renamed(name): one for name, one in tensors.items()}
    unknown, missing = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
    if unknown or missing:
        raise Unloadable(f"no parameter for {unknown}, nothing for {missing}")
    for name, shape in wanted.items():
        if tuple(found[name].shape) != shape:
            raise Unloadable(f"{name} of shape {tuple(found[name].shape)}, not {shape}")
    return found
