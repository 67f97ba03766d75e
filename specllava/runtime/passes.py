"""Input, attention masks and output of a model pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PretrainedConfig

from specllava.core.tree import DraftTree
from specllava.models.checkpoints.language_model import FULL, SLIDING, layer_types


@dataclass(frozen=True, slots=True)
class PassInput:
    """Tokens to append to a KV cache, one column each.

    Args:
        visible: ``[tokens, cached + tokens]``: which columns each token attends to; ``None``: all up to itself.
        positions: of each token in the text, from which its family makes position ids; ``None``: one after the other
            after the cache.
        last: score only that many tokens from the end; 0 for all.
    """

    tokens: Sequence[int]
    visible: npt.NDArray[np.bool_] | None = None
    positions: Sequence[int] | None = None
    last: int = 0

    @classmethod
    def of_tree(cls, tree: DraftTree, cached: int) -> PassInput:
        """Build the input of a tree after ``cached`` columns: nodes attend to the context and to their ancestors."""
        if len(tree) == 1:
            return cls(tree.tokens)
        visible = np.ones((len(tree), cached + len(tree)), dtype=np.bool_)
        visible[:, cached:] = tree.ancestor_mask()
        return cls(tree.tokens, visible, [cached + depth for depth in tree.depths()])


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
            cached: position of each cached column; read only where there is a window.
        """
        full = self.additive(visible)
        if self.window is None:
            return full
        columns = np.array([*cached, *positions])  # [columns]
        near = np.array(positions)[:, None] - columns[None] < self.window
        sliding = self.additive(visible & near)
        return {FULL: full, SLIDING: sliding} if self._mixed else sliding

    def additive(self, visible: npt.NDArray[np.bool_]) -> Tensor:
        """Build the mask ``[1, 1, tokens, columns]`` of one layer type."""
        added = np.where(visible, self._zero, self._never)
        return torch.from_numpy(added).to(self._device, self._dtype)[None, None]


class LogitsReduction(Protocol):
    """Interface of a reduction of a pass's logits to the numbers that the host needs.

    Equal reductions do the same operations.

    A padded engine computes it within the pass and downloads that alone; other engines leave it to the caller.
    """

    @property
    def width(self) -> int:
        """Numbers for each row."""
        ...

    def __call__(self, logits: Tensor) -> Tensor:
        """Summarise ``[rows, vocab]`` as ``[rows, width]`` in float32, without synchronising with the host."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Output of a pass. That of a padded engine lies in its buffers, so it is valid until the next pass.

    Args:
        logits: ``[tokens or last, vocab]``.
        states: hidden states of the engine's ``state_layers``, side by side, ``[tokens, layers * hidden]``;
            ``None`` without any.
        numbers: of each row of the logits, by a :class:`LogitsReduction`, if the pass has computed it.
    """

    logits: Tensor
    states: Tensor | None = None
    numbers: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """Output of the pass over a prompt.

    Args:
        logits: ``[vocab]``, after its last token.
        reused: columns that the KV cache held already, so that no pass was needed for them.
        states: as :class:`PassOutput`, of all columns, the reused ones included: ``[length, layers * hidden]``.
    """

    logits: Tensor
    reused: int
    states: Tensor | None = None
