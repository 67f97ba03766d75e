"""What the target says, by its logits: its most likely token, or one drawn by chance. One judge per answer."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.sampling import Chance, verify_drawn, verify_top, verify_traversal, warp
from specllava.trace import Verification
from specllava.tree import DraftTree
from specllava.verify import verify_greedy


class Judge(Protocol):
    """The decode loop's view of greedy decoding and sampling."""

    def probs(self, logits: Tensor) -> Tensor:
        """The distributions that the judge goes by, ``[rows, vocab]`` in float64, of logits ``[rows, vocab]``."""
        ...

    def first(self, logits: Tensor) -> int:
        """The first token of an answer, of logits ``[vocab]``."""
        ...

    def verify(self, tree: DraftTree, logits: Tensor, drawn: Tensor | None) -> Verification:
        """The verdict on a tree.

        Args:
            logits: ``[nodes, vocab]``.
            drawn: the distribution that each node's children were drawn from, ``[nodes, vocab]``; ``None`` if they
                were chosen.
        """
        ...


class Greedy:
    """Always the target's most likely token."""

    def probs(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.double(), dim=-1)

    def first(self, logits: Tensor) -> int:
        return int(logits.argmax())

    def verify(self, tree: DraftTree, logits: Tensor, drawn: Tensor | None) -> Verification:
        return verify_greedy(tree, logits.argmax(-1).tolist())


class Sampled:
    """Tokens with the target's own distribution, warped by temperature, top-k and top-p."""

    def __init__(self, config: DecodingConfig, chance: Chance) -> None:
        self._config, self._chance = config, chance

    def probs(self, logits: Tensor) -> Tensor:
        return warp(logits, self._config.temperature, self._config.top_p, self._config.top_k)

    def first(self, logits: Tensor) -> int:
        return self._chance.draw(self.probs(logits[None])[0])

    def verify(self, tree: DraftTree, logits: Tensor, drawn: Tensor | None) -> Verification:
        probs = self.probs(logits)
        if drawn is None:
            return verify_top(tree, probs, self._chance)
        judge = verify_traversal if self._config.verifier == "traversal" else verify_drawn
        return judge(tree, probs, drawn, self._chance)


def judge_of(config: DecodingConfig, chance: Chance) -> Judge:
    """The judge that a configuration asks for."""
    return Sampled(config, chance) if config.temperature > 0 else Greedy()
