"""Input and output of a model pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specllava.core.tree import DraftTree


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
