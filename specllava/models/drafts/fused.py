"""A draft's layers with fewer, larger products: the time of a small layer is mostly calls, not arithmetic.

Only drafts are fused. Their numbers decide the guesses, never the answer, so their last bits may differ; the target
keeps its modules and their bits (``engine/llama_layers.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, LlamaModel, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specllava.models.drafts.eagle import EagleLayer, FeatureDraft


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    """Fuse the decoder layers of a model in place if they are a Llama's with plain weights; return the model."""
    if isinstance(model, FeatureDraft):
        if all(isinstance(layer, EagleLayer) and _is_plain(layer) for layer in model.layers):
            model.layers = nn.ModuleList(FusedLayer(layer) for layer in model.layers)
        return model
    decoder = model.get_decoder()
    if isinstance(decoder, LlamaModel) and all(_is_plain(layer) for layer in decoder.layers):
        decoder.layers = nn.ModuleList(FusedLayer(layer) for layer in decoder.layers)
        gain = decoder.norm.weight
        decoder.norm = nn.RMSNorm(gain.shape, decoder.norm.variance_epsilon, device="meta")
        decoder.norm.weight = gain
    return model


def _is_plain(layer: LlamaDecoderLayer) -> bool:
    """Check that a layer's products have no quantised weights, and no biases but queries, keys and values all three."""
    named = {**dict(layer.self_attn.named_children()), **dict(layer.mlp.named_children())}
    products = {name: module for name, module in named.items() if hasattr(module, "weight")}
    if not all(type(each) is nn.Linear and type(each.weight.data) is Tensor for each in products.values()):
        return False
    biased = {name for name, each in products.items() if each.bias is not None}
    return biased in (set(), {"q_proj", "k_proj", "v_proj"})


class FusedLayer(nn.Module):
    """A Llama layer with queries, keys and values in one product, and gate and up in another.

    It is called as transformers calls its own, for a batch of 1.
    """

    def __init__(self, layer: LlamaDecoderLayer) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.number, self.size = attention.layer_idx, attention.head_dim
        self.queries = attention.q_proj.out_features // self.size
        self.keys = attention.k_proj.out_features // self.size
        self.hidden, self.eps = (attention.q_proj.in_features,), layer.post_attention_layernorm.variance_epsilon
        self.activation: Callable[[Tensor], Tensor] = mlp.act_fn
        gain = getattr(layer.input_layernorm, "weight", None)  # EAGLE has no norm in front of its first layer
        self.normed = gain is not None
        inward = attention.q_proj, attention.k_proj, attention.v_proj
        self.biased = attention.q_proj.bias is not None
        absent = attention.o_proj.weight.data.new_ones(0)
        weights = (
            absent if gain is None else gain.data,
            torch.cat([each.bias.data for each in inward]) if self.biased else absent,
            _stack_weights(*inward),
            attention.o_proj.weight.data.t(),
            layer.post_attention_layernorm.weight.data,
            _stack_weights(mlp.gate_proj, mlp.up_proj),
            mlp.down_proj.weight.data.t(),
        )
        self.held = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in weights)
        self.weights = _raw(self)
        self.register_load_state_dict_post_hook(_refresh)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedLayer:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.weights = _raw(self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "weights"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.weights = _raw(self)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        **_: object,
    ) -> Tensor:
        """Run the layer, ``[1, tokens, hidden]`` in and out; without gradients.

        Args:
            attention_mask: added to the scores, ``[1, 1, tokens, columns]``; without it attention is causal.
            position_embeddings: cosines and sines ``[1, tokens, size of a head]``.
            past_key_values: the KV cache; this layer's keys and values are added to it.

        Raises:
            ValueError: several rows.
        """
        assert position_embeddings is not None
        if len(hidden_states) != 1:
            raise ValueError(f"a fused draft reads one row, not {len(hidden_states)}: load one that learns apart")
        first_gain, bias, inward, outward, second_gain, widening, narrowing = self.weights
        states = hidden_states[0]
        tokens = len(states)
        normed = F.rms_norm(states, self.hidden, first_gain, self.eps) if self.normed else states
        made = torch.addmm(bias, normed, inward) if self.biased else torch.mm(normed, inward)
        parts = made.view(1, tokens, -1, self.size).transpose(1, 2)
        turned = _rotate(parts[:, : -self.keys], *position_embeddings)  # [1, queries + keys, tokens, size]
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
        states = torch.addmm(states, gathered, outward)
        normed = F.rms_norm(states, self.hidden, second_gain, self.eps)
        gate, up = torch.mm(normed, widening).chunk(2, -1)
        return torch.addmm(states, self.activation(gate) * up, narrowing)[None]


def _raw(layer: FusedLayer) -> tuple[Tensor, ...]:
    """Return the layer's weights as plain tensors: looking up a module's parameter takes as long as an addition."""
    return tuple(weight.data for weight in layer.held)


def _refresh(layer: FusedLayer, _: object) -> None:
    layer.weights = _raw(layer)


def _rotate(parts: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate queries and keys ``[1, heads, tokens, size]`` by their positions: a head's halves form one plane."""
    first, second = parts.chunk(2, -1)
    return torch.addcmul(parts * cosines, torch.cat([-second, first], -1), sines)


def _stack_weights(*products: nn.Linear) -> Tensor:
    """Concatenate the weights of several products, ``[in, out]``, so that their results follow one another."""
    return torch.cat([each.weight.data.t() for each in products], dim=1)
