"""A Llama's layers and norms in fewer operations than transformers' own, with their bits.

A short pass takes as long as its launches on a GPU, and calls are a good part of it on a CPU. The modules stay as they
are: only how a pass runs them differs, and :func:`torch.equal` holds against them (``tests/test_llama_layers.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    eager_attention_forward,
)

GATHERING: Final = "transformers.utils.output_capturing"  # where its hooks are

Linear = Callable[[nn.Module, Tensor], Tensor]


class Rotation(NamedTuple):
    """Rotations of the tokens of a pass, ``[1, tokens, head_dim]`` each.

    Args:
        signed_sines: sines, negated in the first half: the halves of a head, swapped, are multiplied by them.
    """

    cosines: Tensor
    sines: Tensor
    signed_sines: Tensor

    @classmethod
    def of(cls, cosines: Tensor, sines: Tensor) -> Self:
        first, second = sines.chunk(2, -1)
        return cls(cosines, sines, torch.cat((-first, second), -1))


def call(module: nn.Module, states: Tensor) -> Tensor:
    """Run a linear layer as it is."""
    product: Tensor = module(states)
    return product


def run_layer(
    layer: Any, states: Tensor, mask: Any, rotation: Rotation, cache: Cache, linear: Linear = call
) -> Tensor:
    """Run a decoder layer, ``[1, tokens, hidden]`` in and out; one that is not a plain Llama's is called.

    Args:
        mask: as the layer takes it.
        cache: where its keys and values are added.
        linear: runs a linear layer.
    """
    if not (_is_stock(layer, LlamaDecoderLayer) and _is_stock(layer.self_attn, LlamaAttention)):
        called: Tensor = layer(
            states, attention_mask=mask, position_embeddings=rotation[:2], past_key_values=cache, use_cache=True
        )
        return called
    normed, mlp = run_norm(layer.input_layernorm, states), layer.mlp
    states = states + _attend(layer.self_attn, normed, mask, rotation, cache, linear)
    normed = run_norm(layer.post_attention_layernorm, states)
    if not _is_stock(mlp, LlamaMLP):
        return states + call(mlp, normed)
    gated: Tensor = mlp.act_fn(linear(mlp.gate_proj, normed))
    return states + linear(mlp.down_proj, gated * linear(mlp.up_proj, normed))


def run_norm(norm: Any, states: Tensor) -> Tensor:
    """Run a norm, ``[..., hidden]`` in and out; one that is not a plain Llama's is called."""
    if not _is_stock(norm, LlamaRMSNorm):
        called: Tensor = norm(states)
        return called
    read = states.float() if states.dtype == torch.float64 else states  # a Llama's norm computes in float32
    normed = F.rms_norm(read, states.shape[-1:], None, norm.variance_epsilon).to(states.dtype)
    gained: Tensor = norm.weight * normed
    return gained


def _attend(
    attention: LlamaAttention, states: Tensor, mask: Any, rotation: Rotation, cache: Cache, linear: Linear
) -> Tensor:
    """Run a layer's attention; queries and keys are rotated together."""
    shape = (*states.shape[:-1], -1, attention.head_dim)
    queries, keys, values = (
        linear(product, states).view(shape) for product in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    rotated = _rotate(torch.cat((queries, keys), dim=2), rotation).transpose(1, 2)
    heads = queries.shape[2]
    keys, values = cache.update(rotated[:, heads:], values.transpose(1, 2), attention.layer_idx)
    attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, eager_attention_forward
    )
    seen, _ = attend(attention, rotated[:, :heads], keys, values, mask, dropout=0.0, scaling=attention.scaling)
    return linear(attention.o_proj, seen.reshape(*states.shape[:-1], -1))


def _rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate ``[1, tokens, heads, head_dim]``: negating a factor negates the product, and no rounding changes."""
    first, second = heads.chunk(2, -1)
    swapped = torch.cat((second, first), -1)
    return heads * rotation.cosines.unsqueeze(2) + swapped * rotation.signed_sines.unsqueeze(2)


def hooked(module: nn.Module) -> bool:
    """Check for hooks that a caller has set on a module, or a ``forward`` of its own.

    Hooks that gather hidden states for transformers' own ``forward`` do nothing outside of it. Those of accelerate move
    inputs between devices.
    """
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    replaced = "forward" in vars(module) and not hasattr(module, "_hf_hook")
    return replaced or any(getattr(hook, "__module__", "") != GATHERING for hook in hooks)


def _is_stock(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Check that a module is of a class itself, in evaluation, and that calling it runs nothing else."""
    return type(module) is kind and not (module.training or "forward" in vars(module) or hooked(module))
