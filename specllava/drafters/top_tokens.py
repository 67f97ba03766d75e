"""Guesses after a node: the likeliest next tokens of the draft, or draws from its distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.generation import LogitsProcessorList

from specllava.core.growth.rule import TopTokens
from specllava.verification.sampling import RandomSource, draw_children, warp
from specllava.verification.verifier import check_finite

TopTokensOf = Callable[[Tensor, int, Sequence[int]], list[TopTokens]]  # of logits, how many, after which nodes


class Drawing:
    """Draws of guesses from the draft's warped distributions, which are kept for one tree."""

    def __init__(self, warpers: LogitsProcessorList, random: RandomSource) -> None:
        self._warpers, self._random = warpers, random
        self._rows: dict[int, Tensor] = {}

    def __call__(self, logits: Tensor, count: int, nodes: Sequence[int]) -> list[TopTokens]:
        probs = warp(logits, self._warpers)
        if 0 in nodes:
            self._rows = {}
        drawn = []
        entropies = torch.special.entr(probs).sum(-1).tolist()
        if any(map(math.isnan, entropies)):
            check_finite(logits, "draft")
            probs = probs.nan_to_num(0.0)  # where every token is forbidden
            entropies = torch.special.entr(probs).sum(-1).tolist()
        for node, row, entropy in zip(nodes, probs, entropies, strict=True):
            self._rows[node] = row
            tokens = draw_children(row, count, self._random)
            drawn.append(TopTokens(tokens, row[tokens].log().tolist(), entropy))
        return drawn

    def of(self, nodes: Sequence[int]) -> Tensor | None:
        """Return the distributions of these nodes' children, ``[nodes, vocab]``; zeros where none were drawn."""
        if not self._rows:
            return None
        nothing = torch.zeros_like(self._rows[0])
        return torch.stack([self._rows.get(node, nothing) for node in nodes])


def top_tokens(logits: Tensor, count: int, nodes: Sequence[int] = ()) -> list[TopTokens]:
    """Return the ``count`` likeliest next tokens of each row of ``logits [rows, vocab]``, and its entropy in nats.

    Raises:
        ValueError: logits that are no numbers.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    entropies = (-(log_probs.exp() * log_probs).sum(-1)).tolist()
    possible = log_probs.shape[-1]
    if any(map(math.isnan, entropies)):
        check_finite(logits, "draft")
        log_probs = log_probs.nan_to_num(-torch.inf, neginf=-torch.inf)  # where every token is forbidden
        entropies = torch.special.entr(log_probs.exp()).sum(-1).tolist()  # of suppressed tokens, whose logits are -inf
        possible = int((log_probs > -torch.inf).sum(-1).min())
    top = log_probs.topk(min(count, possible), dim=-1)
    return [
        TopTokens(tokens, values, entropy)
        for tokens, values, entropy in zip(top.indices.tolist(), top.values.tolist(), entropies, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class TopTokensReduction:
    """Reduction of logits to what :func:`top_tokens` returns, as numbers for one download: see :meth:`decode`.

    Args:
        count: tokens of each row; the vocabulary has as many.
    """

    count: int

    @property
    def width(self) -> int:
        return 1 + 2 * self.count

    def __call__(self, logits: Tensor) -> Tensor:
        """Return entropy, log-probabilities and tokens, ``[rows, width]``; ids below 2^24 are float32 numbers."""
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        possible = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 times -inf is no number
        entropies = -(log_probs.exp() * possible).sum(-1, keepdim=True)
        top = log_probs.topk(self.count, dim=-1)
        return torch.cat([entropies, top.values, top.indices.float()], dim=-1)

    def undefined(self, numbers: Sequence[Sequence[float]]) -> bool:
        """Return whether the entropy of a row is no number: of logits that are none, or that forbid every token."""
        return any(math.isnan(row[0]) for row in numbers)

    def decode(self, numbers: Sequence[Sequence[float]]) -> list[TopTokens]:
        """Decode the numbers of each row; tokens that the draft cannot guess are left out."""
        tops = []
        for entropy, *rest in numbers:
            values = [value for value in rest[: self.count] if value > -math.inf]
            tops.append(TopTokens([int(token) for token in rest[self.count :][: len(values)]], values, entropy))
        return tops
