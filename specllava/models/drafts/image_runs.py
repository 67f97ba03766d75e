"""Runs of image slots in a text, and ViSpec's adaptor that compresses one (arXiv 2509.15235)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def segments_of(slots: Tensor) -> list[tuple[int, int, int]]:
    """Cut a text into runs of image slots and what lies between; ``slots`` is ``[length]``.

    Returns:
        Begin, end and number of each segment in order: runs of slots are numbered from 1, text has number 0.
    """
    edges = torch.diff(F.pad(slots.to(torch.int8), (1, 1))).nonzero()[:, 0].tolist()  # begin, end, begin, end, …
    bounds = [0, *edges, len(slots)]
    cut = enumerate(pairwise(bounds))
    return [(begin, end, (index + 1) // 2 * (index % 2)) for index, (begin, end) in cut if begin < end]


class ImageAdaptor(nn.Module):
    """Cross-attention from learnt queries to the embeddings of a run of image slots; no positions, not causal."""

    def __init__(self, queries: int, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.empty(queries, heads, width // heads))
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.q, std=0.02)

    def forward(self, embeds: Tensor) -> Tensor:
        """Compress ``[slots, hidden]`` to ``[queries, hidden]``."""
        count, heads, size = self.q.shape
        keys, values = (made(embeds).view(1, -1, heads, size).transpose(1, 2) for made in (self.k_proj, self.v_proj))
        seen = F.scaled_dot_product_attention(self.q.transpose(0, 1)[None], keys, values)  # [1, heads, queries, size]
        gathered: Tensor = self.o_proj(seen[0].transpose(0, 1).reshape(count, heads * size))
        return gathered
