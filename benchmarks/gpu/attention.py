"""Which kernel attention runs, and what a length that is new costs: cuDNN's makes a plan for each, of tens of ms."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from specllava.pair import Pair
from specllava.runtime.timing import now

FIRST_LENGTH, LENGTHS = 650, 5


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention of a target pass, in seconds.

    Args:
        kernel: that torch chooses.
        new, again: medians over lengths, the first time that a length comes and the second.
    """

    rows: int
    masked: bool
    cudnn: bool
    kernel: str
    new: float
    again: float


def time_attention(pair: Pair) -> list[Attention]:
    """Time attention as target passes run it, with cuDNN allowed and without."""
    found = []
    for cudnn in (False, True):
        with _cudnn(cudnn):
            found += [_time(pair, rows, masked, cudnn) for rows in (1, 32) for masked in (False, True)]
    return found


def _time(pair: Pair, rows: int, masked: bool, cudnn: bool) -> Attention:
    config, options = pair.target.config.text_config, {"device": pair.device, "dtype": pair.target.dtype}
    heads, size = config.num_attention_heads, config.head_dim
    taken: list[list[float]] = [[], []]
    for length in range(FIRST_LENGTH, FIRST_LENGTH + LENGTHS):
        query = torch.zeros((1, heads, rows, size), **options)
        keys = torch.zeros((1, heads, length, size), **options)
        mask = torch.zeros((1, 1, rows, length), **options) if masked else None
        for times in taken:
            started = now(pair.device)
            scaled_dot_product_attention(query, keys, keys, mask)
            times.append(now(pair.device) - started)
    kernel = SDPBackend(torch._fused_sdp_choice(query, keys, keys, mask)).name  # the only one that tells
    new, again = map(statistics.median, taken)
    return Attention(rows, masked, cudnn, kernel, new, again)


@contextmanager
def _cudnn(allowed: bool) -> Iterator[None]:
    before = cudnn_sdp_enabled()
    enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        enable_cudnn_sdp(before)
