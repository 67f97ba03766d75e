"""A Llama's layers and norms in fewer operations than transformers' own, with their bits.

A short pass takes as long as its launches on a GPU, and calls are a good part of it on a CPU. The modules stay as they
are: only how a pass runs them differs, and :func:`torch.equal` holds against them (``tests/test_llama_layer.py``).
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
    LlamaRMSNorm,
    eager_attention_forward,
)

GATHERING: Final = "transformers.utils.output_capturing"  # where its hooks are


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


def run_layer(layer: Any, states: Tensor, mask: Any, rotation: Rotation, cache: Cache) -> Tensor:
    """Run a decoder layer, ``[1, tokens, hidden]`` in and out; one that is not a plain Llama's is called.

    Args:
        mask: as the layer takes it.
        cache: where its keys and values are added.
    """
    if not (_is_stock(layer, LlamaDecoderLayer) and _is_stock(layer.self_attn, LlamaAttention)):
        called: Tensor = layer(
            states, attention_mask=mask, position_embeddings=rotation[:2], past_key_values=cache, use_cache=True
        )
        return called
    states = states + _attend(layer.self_attn, run_norm(layer.input_layernorm, states), mask, rotation, cache)
    widened: Tensor = layer.mlp(run_norm(layer.post_attention_layernorm, states))
    return states + widened


def run_norm(norm: Any, states: Tensor) -> Tensor:
    """Run a norm, ``[..., hidden]`` in and out; one that is not a plain Llama's is called."""
    if not _is_stock(norm, LlamaRMSNorm):
        called: Tensor = norm(states)
        return called
    read = states.float() if states.dtype == torch.float64 else states  # a Llama's norm computes in float32
    normed = F.rms_norm(read, states.shape[-1:], None, norm.variance_epsilon).to(states.dtype)
    gained: Tensor = norm.weight * normed
    return gained


def _attend(attention: LlamaAttention, states: Tensor, mask: Any, rotation: Rotation, cache: Cache) -> Tensor:
    """Run a layer's attention; queries and keys are rotated together."""
    shape = (*states.shape[:-1], -1, attention.head_dim)
    queries, keys, values = (
        product(states).view(shape) for product in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    rotated = _rotate(torch.cat((queries, keys), dim=2), rotation).transpose(1, 2)
    heads = queries.shape[2]
    keys, values = cache.update(rotated[:, heads:], values.transpose(1, 2), attention.layer_idx)
    attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, eager_attention_forward
    )
    seen, _ = attend(attention, rotated[:, :heads], keys, values, mask, dropout=0.0, scaling=attention.scaling)
    gathered: Tensor = attention.o_proj(seen.reshape(*states.shape[:-1], -1))
    return gathered


def _rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate ``[1, tokens, heads, head_dim]``: negating a factor negates the product, and no rounding changes."""
    first, second = heads.chunk(2, -1)
    swapped = torch.cat((second, first), -1)
    return heads * rotation.cosines.unsqueeze(2) + swapped * rotation.signed_sines.unsqueeze(2)


def _is_stock(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Check that a module is of a class itself, without hooks and without a ``forward`` of its own (accelerate).

    Hooks that gather hidden states for transformers' own ``forward`` do nothing outside of it, and stay for good.
    """
    return type(module) is kind and not (
        module._forward_pre_hooks
        or "forward" in vars(module)
        or module.training
        or any(hook.__module__ != GATHERING for hook in module._forward_hooks.values())
    )
