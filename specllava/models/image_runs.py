"""Runs of image slots in a text, and ViSpec's adaptor that compresses one (arXiv 2509.15235)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specllava.models.feature_config import FeatureDraftConfig


def runs_of(slots: Tensor) -> list[tuple[int, int]]:
    """Return begin and end of each contiguous run of ``slots [length]``."""
    edges = torch.diff(F.pad(slots.to(torch.int8), (1, 1)))
    begins, ends = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
    return list(zip(begins, ends, strict=True))


class ImageAdaptor(nn.Module):
    """Cross-attention from learnt queries to the embeddings of a run of image slots; no positions, not causal."""

    def __init__(self, config: FeatureDraftConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.q = nn.Parameter(torch.empty(config.queries, heads, width // heads))
        self.k_proj = nn.Linear(width, width, bias=config.attention_bias)
        self.v_proj = nn.Linear(width, width, bias=config.attention_bias)
        self.o_proj = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.q, std=config.initializer_range)

    def forward(self, embeds: Tensor) -> Tensor:
        """Compress ``[slots, hidden]`` to ``[queries, hidden]``."""
        count, heads, size = self.q.shape
        keys, values = (made(embeds).view(1, -1, heads, size).transpose(1, 2) for made in (self.k_proj, self.v_proj))
        seen = F.scaled_dot_product_attention(self.q.transpose(0, 1)[None], keys, values)  # [1, heads, queries, size]
        gathered: Tensor = self.o_proj(seen[0].transpose(0, 1).reshape(count, heads * size))
        return gathered
