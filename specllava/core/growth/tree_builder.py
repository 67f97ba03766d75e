"""A draft tree under construction, and the draft's likeliest tokens after each of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specllava.core.tree import ROOT_PARENT


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The draft's next-token distribution after one node, as far as growth needs it.

    Args:
        tokens: most likely tokens, best first.
        log_probs: their log-probabilities in nats.
        entropy: of the whole distribution, in nats.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    entropy: float


@dataclass(slots=True)
class TreeBuilder:
    """A tree under construction; node 0 is the root. ``scores`` are cumulative log-probabilities in nats."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    ranks: list[int] = field(default_factory=lambda: [0])
    log_probs: list[float] = field(default_factory=lambda: [0.0])
    scores: list[float] = field(default_factory=lambda: [0.0])
    entropies: list[float | None] = field(default_factory=lambda: [None])

    def add(self, token: int, parent: int, rank: int, log_prob: float) -> int:
        """Add the child number ``rank`` of ``parent``; return its node id."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.ranks.append(rank)
        self.log_probs.append(log_prob)
        self.scores.append(self.scores[parent] + log_prob)
        self.entropies.append(None)
        return len(self.tokens) - 1
