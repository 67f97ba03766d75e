"""Verifiers, one per answer: the target's most likely token, or a draw from its distribution."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.tree import DraftTree
from specllava.verdict import Verification
from specllava.verification.greedy import verify_greedy
from specllava.verification.sampling import Observer, RandomSource, verify_drawn, verify_top, verify_traversal, warp


class Verifier(Protocol):
    """Interface of greedy decoding and of sampling for the decode loop."""

    def first_token(self, logits: Tensor) -> int:
        """Return the first token of an answer, of logits ``[vocab]``."""
        ...

    def verify(
        self, tree: DraftTree, logits: Tensor, draft_probs: Tensor | None, observer: Observer | None = None
    ) -> tuple[Verification, Tensor | None]:
        """Verify a tree; also return the distributions that were used, if any had to be computed.

        Args:
            logits: ``[nodes, vocab]``.
            draft_probs: the distribution that each node's children were drawn from, ``[nodes, vocab]``; ``None`` if
                they were chosen.
            observer: who hears of the numbers that are drawn, if any are.
        """
        ...


class GreedyVerifier:
    """Verifier that accepts the target's most likely token."""

    def first_token(self, logits: Tensor) -> int:
        return int(logits.argmax())

    def verify(
        self, tree: DraftTree, logits: Tensor, draft_probs: Tensor | None, observer: Observer | None = None
    ) -> tuple[Verification, Tensor | None]:
        return verify_greedy(tree, logits.argmax(-1).tolist()), None


class SamplingVerifier:
    """Verifier that keeps the target's own distribution, warped by temperature, top-k and top-p."""

    def __init__(self, config: DecodingConfig, random: RandomSource) -> None:
        self._config, self._random = config, random

    def first_token(self, logits: Tensor) -> int:
        return self._random.draw(self._probs(logits[None])[0])

    def verify(
        self, tree: DraftTree, logits: Tensor, draft_probs: Tensor | None, observer: Observer | None = None
    ) -> tuple[Verification, Tensor | None]:
        probs = self._probs(logits)
        if draft_probs is None:
            return verify_top(tree, probs, self._random, observer), probs
        verify = verify_traversal if self._config.verifier == "traversal" else verify_drawn
        return verify(tree, probs, draft_probs, self._random, observer), probs

    def _probs(self, logits: Tensor) -> Tensor:
        return warp(logits, self._config.temperature, self._config.top_p, self._config.top_k)


def build_verifier(config: DecodingConfig, random: RandomSource) -> Verifier:
    """Build the verifier of a configuration."""
    return SamplingVerifier(config, random) if config.temperature > 0 else GreedyVerifier()


def check_finite(logits: Tensor, whose: str) -> None:
    """Refuse logits that are no numbers.

    Raises:
        ValueError: NaN or positive infinity, as from damaged weights or an overflow of float16.
    """
    if not bool((logits < torch.inf).all()):
        raise ValueError(
            f"the {whose}'s logits are not numbers: its weights are damaged, or float16 overflowed (try --dtype"
            " bfloat16 or float32)"
        )
