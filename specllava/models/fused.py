"""A draft's layers with fewer, larger products: what a small layer takes is mostly the calls, not the arithmetic.

Only drafts are fused. Their numbers decide what is guessed, never what is said, so their last bits are free; the
target keeps the layers that transformers gives it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, LlamaModel, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    """The same model; if its decoder is a Llama with plain weights, with that decoder's layers fused in place."""
    decoder = model.get_decoder()
    if isinstance(decoder, LlamaModel) and all(_is_plain(layer) for layer in decoder.layers):
        decoder.layers = nn.ModuleList(FusedLayer(layer) for layer in decoder.layers)
        decoder.norm = _fused_norm(decoder.norm)
    return model


def _is_plain(layer: LlamaDecoderLayer) -> bool:
    """Products without biases, of weights that are numbers and no codes for them."""
    products = [module for module in (*layer.self_attn.children(), *layer.mlp.children()) if hasattr(module, "weight")]
    return all(type(each) is nn.Linear and each.bias is None and type(each.weight.data) is Tensor for each in products)


class FusedLayer(nn.Module):
    """A layer of a Llama: queries, keys and values in one product, and gate and up in another.

    It is called as transformers calls its own, for a batch of 1.
    """

    def __init__(self, layer: LlamaDecoderLayer) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.number, self.size = attention.layer_idx, attention.head_dim
        self.queries = attention.q_proj.out_features // self.size
        self.keys = attention.k_proj.out_features // self.size
        self.first_norm = _fused_norm(layer.input_layernorm)
        self.inward = _stacked(attention.q_proj, attention.k_proj, attention.v_proj)
        self.outward = attention.o_proj
        self.second_norm = _fused_norm(layer.post_attention_layernorm)
        self.widening = _stacked(mlp.gate_proj, mlp.up_proj)
        self.activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self.narrowing = mlp.down_proj

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        **_: object,
    ) -> Tensor:
        """``[1, tokens, hidden]`` in and out.

        Args:
            attention_mask: added to the scores, ``[1, 1, tokens, columns]``; without it a token sees those before it.
            position_embeddings: cosines and sines ``[1, tokens, size of a head]``.
            past_key_values: what was read before; this layer's keys and values are added to it.
        """
        assert position_embeddings is not None
        states = hidden_states[0]
        tokens = len(states)
        parts = self.inward(self.first_norm(states)).view(tokens, -1, self.size).transpose(0, 1)[None]
        turned = _turned(parts[:, : -self.keys], *position_embeddings)  # [1, queries + keys, tokens, size]
        keys, values = turned[:, self.queries :], parts[:, -self.keys :]
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.number)
        seen = F.scaled_dot_product_attention(
            turned[:, : self.queries],
            keys,
            values,
            attn_mask=attention_mask,
            is_causal=attention_mask is None and tokens > 1,
            enable_gqa=self.queries != self.keys,
        )
        gathered = seen[0].transpose(0, 1).reshape(tokens, -1)  # [tokens, queries * size]
        states = torch.addmm(states, gathered, self.outward.weight.t())
        gate, up = self.widening(self.second_norm(states)).chunk(2, -1)
        return torch.addmm(states, self.activation(gate) * up, self.narrowing.weight.t())[None]


def _turned(parts: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries and keys ``[1, heads, tokens, size]``, rotated by their positions: the halves of a head as one plane."""
    first, second = parts.chunk(2, -1)
    return torch.addcmul(parts * cosines, torch.cat([-second, first], -1), sines)


def _stacked(*products: nn.Linear) -> nn.Linear:
    """One product that gives the results of several, one behind the other."""
    weight = torch.cat([each.weight.data for each in products])
    whole = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    return whole


def _fused_norm(norm: LlamaRMSNorm) -> nn.RMSNorm:
    fused = nn.RMSNorm(norm.weight.shape, norm.variance_epsilon, device="meta")
    fused.weight = norm.weight
    return fused
