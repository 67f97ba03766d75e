"""Attention masks of a pass, per layer type: full attention, and sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PretrainedConfig

from specllava.models.checkpoints.language_model import FULL, SLIDING, layer_types


def seen_in_prefill(slots: npt.NDArray[np.bool_], start: int) -> npt.NDArray[np.bool_]:
    """Return which columns the tokens from ``start`` on see: all up to themselves, and a slot the run it is in.

    Args:
        slots: which tokens are image slots, ``[length]``.

    Returns:
        Truth values ``[length - start, length]``.
    """
    begins = slots & ~np.concatenate([[False], slots[:-1]])
    runs = np.where(slots, begins.cumsum(), 0)  # the number of the run that a slot lies in, from 1
    visible = np.tri(len(slots) - start, len(slots), start, dtype=np.bool_)
    visible |= slots[start:, None] & (runs[start:, None] == runs)
    return visible


class AttentionMasks:
    """Builder of the masks that a decoder adds to its attention scores.

    Args:
        config: of the decoder; its ``layer_types`` and ``sliding_window`` decide which masks there are.
    """

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        types = set(layer_types(config))
        self.window: int | None = int(config.sliding_window) if SLIDING in types else None
        self._mixed = len(types) > 1
        self._device, self._dtype = device, dtype
        number = np.float64 if dtype is torch.float64 else np.float32
        self._zero, self._never = number(0.0), number(torch.finfo(dtype).min)

    def of(
        self, visible: npt.NDArray[np.bool_], positions: Sequence[int], cached: Sequence[int]
    ) -> Tensor | dict[str, Tensor]:
        """Build masks ``[1, 1, tokens, columns]``, 0 where a column is visible; a dictionary where layer types differ.

        Args:
            visible: ``[tokens, columns]``.
            positions: of each token in the text; read only where there is a window.
            cached: position of each cached column; likewise.
        """
        full = self._additive_mask(visible)
        if self.window is None:
            return full
        columns = np.array([*cached, *positions])  # [columns]
        near = np.array(positions)[:, None] - columns[None] < self.window
        sliding = self._additive_mask(visible & near)
        return {FULL: full, SLIDING: sliding} if self._mixed else sliding

    def _additive_mask(self, visible: npt.NDArray[np.bool_]) -> Tensor:
        added = np.where(visible, self._zero, self._never)
        return torch.from_numpy(added).to(self._device, self._dtype)[None, None]
