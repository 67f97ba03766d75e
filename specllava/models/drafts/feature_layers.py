"""Decoder layers of feature drafts: a Llama's, with another beginning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from specllava.models.drafts.feature_config import FeatureDraftConfig


class EagleLayer(LlamaDecoderLayer):
    """Decoder layer of EAGLE, whose first layer has no input norm unless the configuration asks for one."""

    def __init__(self, config: FeatureDraftConfig, number: int) -> None:
        super().__init__(config, number)
        if number == 0 and not config.input_norm:
            self.input_layernorm = nn.Identity()
        if config.qk_norm:
            self.self_attn = _normed_attention(config, number)
        if config.qkv_bias:
            _replace_products(self.self_attn, config.hidden_size, bias=True)


class Eagle3Layer(LlamaDecoderLayer):
    """First decoder layer of EAGLE-3: attends over token embedding and state side by side, ``[…, 2 hidden]``."""

    def __init__(self, config: FeatureDraftConfig, number: int) -> None:
        super().__init__(config, number)
        if config.qk_norm:
            self.self_attn = _normed_attention(config, number)
        _replace_products(self.self_attn, 2 * config.hidden_size, config.qkv_bias or config.attention_bias)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):  # torch's own, which keeps float64
            setattr(self, name, nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.norm_before_residual = config.norm_before_residual

    def forward(self, hidden_states: Tensor, **arguments: Any) -> Tensor:
        """Run the layer on ``[1, tokens, 2 hidden]``; the result is ``[1, tokens, hidden]``."""
        embeds, states = hidden_states.chunk(2, -1)
        normed = self.hidden_norm(states)
        attended, _ = self.self_attn(
            hidden_states=torch.cat([self.input_layernorm(embeds), normed], dim=-1), **arguments
        )
        states = (normed if self.norm_before_residual else states) + attended
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


def _normed_attention(config: FeatureDraftConfig, number: int) -> Qwen3Attention:
    """Return Qwen3's attention, which norms each head of queries and keys before it rotates them."""
    attention = Qwen3Attention(config, number)
    for name in ("q_norm", "k_norm"):  # torch's own, which keeps float64
        setattr(attention, name, nn.RMSNorm(attention.head_dim, eps=config.rms_norm_eps))
    return attention


def _replace_products(attention: nn.Module, width: int, bias: bool) -> None:
    """Let queries, keys and values be made of ``width`` numbers."""
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(width, getattr(attention, name).out_features, bias=bias))
