"""Loaded weights at addresses that are no multiple of 64 bytes, as files of other lengths would give them.

With ``SPECLLAVA_TESTS_SHIFT=8`` in the environment every weight that a test loads begins that many bytes after such a
multiple. A test that asks for equal bits of products over differently aligned memory then fails.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specllava.models import checkpoint, loading

ALIGNMENT = checkpoint.ALIGNMENT


def shift_weights(count: int) -> None:
    """Have the package load weights at addresses that are ``count`` bytes after a multiple of 64.

    Raises:
        ValueError: not a positive multiple of 8 below 64.
    """
    if count not in range(8, ALIGNMENT, 8):
        raise ValueError(f"weights are shifted by 8, 16 … {ALIGNMENT - 8} bytes, not by {count}")
    layer_out, fuse = loading._prepare, loading.fuse

    def shifted(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or type(tensor.data) is not Tensor or tensor.numel() == 0:
            return tensor
        memory = torch.empty(tensor.nbytes + 2 * ALIGNMENT, dtype=torch.uint8)
        start = (count - memory.data_ptr()) % ALIGNMENT
        flat = memory[start : start + tensor.nbytes].view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor) if _dense(tensor) else tensor

    def moved(model: PreTrainedModel) -> PreTrainedModel:
        with torch.no_grad():
            return model._apply(shifted)

    checkpoint.align_memory = shifted
    loading._prepare = lambda model, device: moved(layer_out(model, device))
    loading.fuse = lambda model: moved(fuse(model))


def _dense(tensor: Tensor) -> bool:
    """Check that a tensor fills its memory, row by row or column by column."""
    return tensor.is_contiguous() or tensor.t().is_contiguous() if tensor.dim() == 2 else tensor.is_contiguous()
