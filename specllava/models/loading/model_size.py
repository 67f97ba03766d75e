"""Memory of a model and of a pair, from a few of their numbers. No torch, so that presets are weighed without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from specllava.core.config import DecodingConfig

GB: Final = 1e9
SHORTEST: Final = 64  # tokens of context that are worth proposing
ENOUGH: Final = 4096  # tokens of context that are taken without being asked, where all that the target holds do not fit


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of a model that its memory follows from.

    Args:
        weights: all of them; a head that is tied to the embeddings counts once.
        layers, kv_heads, head_dim: of its KV cache.
        linear: weights of the decoder's linear layers, which a quantised target stores in fewer bits.
        states: numbers of the target's states that are held for each of its columns, where a draft reads them.
    """

    weights: int
    layers: int
    kv_heads: int
    head_dim: int
    linear: int = 0
    states: int = 0

    @property
    def column(self) -> int:
        """Numbers in one column of its KV cache: the keys and values of a token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def weight_bytes(self, number: int, linear: float | None = None) -> float:
        """Count the bytes of the weights.

        Args:
            number: bytes of one.
            linear: bytes of one in the decoder's linear layers; as the others without it.
        """
        return float(self.weights * number) + self.linear * ((linear or number) - number)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by purpose. Activations come on top; they are small beside weights, batch 1.

    Args:
        target, draft: weights.
        caches: keys and values of both models, and the target's states if the draft reads them, for ``context`` tokens
            and a tree of the default options behind them. A dialogue takes all of it; an answer by itself takes what
            prompt and answer need.
        column: bytes of them for one more token.
    """

    target: float
    draft: float
    caches: float
    context: int
    column: int

    @property
    def total(self) -> float:
        return self.target + self.draft + self.caches

    def room(self, free: float) -> int:
        """Return how many tokens of context fit into ``free`` bytes; below zero if not even the weights do."""
        return self.context - math.ceil((self.total - free) / self.column)

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.2f} GB of memory: target {self.target / GB:.2f}, draft {self.draft / GB:.2f},"
            f" caches for {self.context} tokens {self.caches / GB:.2f}"
        )


def pair_memory(
    target: ModelSize, draft: ModelSize | None, context: int, number: int, linear: float | None = None
) -> Estimate:
    """Count the memory of a pair.

    Args:
        context: tokens of prompt and answer.
        number: bytes of a weight, and of a number of the caches.
        linear: bytes of a weight in the linear layers of the target's decoder, if that is quantised.
    """
    tree = DecodingConfig()
    columns = target_columns(context, tree)
    caches, column = columns * target.column, target.column
    if draft is not None:
        caches += draft_columns(context, tree) * draft.column + columns * draft.states
        column += draft.column + draft.states
    return Estimate(
        target=target.weight_bytes(number, linear),
        draft=0.0 if draft is None else draft.weight_bytes(number),
        caches=float(caches * number),
        context=context,
        column=column * number,
    )


def target_columns(length: int, config: DecodingConfig) -> int:
    """Count columns of the target's KV cache for ``length`` tokens of prompt and answer and the largest tree."""
    return length + config.nodes + 1


def draft_columns(length: int, config: DecodingConfig) -> int:
    """Count columns of a draft's KV cache likewise; it holds every expanded node until the target has verified."""
    return target_columns(length, config) + max_expansions(config)


def max_expansions(config: DecodingConfig) -> int:
    """Count the nodes of one tree that the draft may expand: a beam's levels, or a whole static shape."""
    return max(config.depth * config.width, config.nodes)
