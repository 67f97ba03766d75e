"""The values that go into a model pass and come out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specllava.tree import DraftTree


@dataclass(frozen=True, slots=True)
class PassInput:
    """Tokens to append to a KV cache, one column each.

    Args:
        tokens: their ids.
        visible: ``[tokens, cached + tokens]``: which columns each token attends to; ``None``: all up to itself.
        positions: of each token in the text, from which its family makes position ids; ``None``: one after the other
            behind the cache.
        last: score only that many tokens from the end; 0 for all.
    """

    tokens: Sequence[int]
    visible: npt.NDArray[np.bool_] | None = None
    positions: Sequence[int] | None = None
    last: int = 0

    @classmethod
    def of_tree(cls, tree: DraftTree, cached: int) -> PassInput:
        """A whole tree behind ``cached`` columns: each node attends to the context and to its own ancestors."""
        if len(tree) == 1:
            return cls(tree.tokens)
        visible = np.ones((len(tree), cached + len(tree)), dtype=np.bool_)
        visible[:, cached:] = tree.ancestor_mask()
        return cls(tree.tokens, visible, [cached + depth for depth in tree.depths()])


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a pass gives.

    Args:
        logits: ``[tokens or last, vocab]``.
        states: hidden states of the layers that the engine was asked for, side by side, ``[tokens, layers * hidden]``;
            ``None`` if none were.
    """

    logits: Tensor
    states: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """What reading a prompt gives.

    Args:
        logits: ``[vocab]``, after its last token.
        reused: columns that the KV cache held already, so that no pass was needed for them.
        states: as :class:`PassOutput`, of the columns that were read, ``[length - reused, layers * hidden]``.
    """

    logits: Tensor
    reused: int
    states: Tensor | None = None
