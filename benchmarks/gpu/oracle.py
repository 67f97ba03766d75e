"""A drafter whose guesses are accepted as often as a measurement asks: it knows the answer.

A draft of random weights is never right, so nothing that follows acceptance would be measured with it. The real draft's
passes run, for what they cost. Then the known continuation replaces its guesses along one path of its tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from random import Random
from typing import Final

from torch import Tensor

from specllava.core.tree import DraftTree
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession

GOLDEN: Final = (5**0.5 - 1) / 2  # its multiples, less their whole parts, fill 0 to 1 evenly however few there are


@cache
def acceptance(levels: int, tau: float) -> float:
    """Return the chance of each level by which ``levels`` of them give ``tau`` tokens per pass, the bonus included."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = sum(middle**level for level in range(levels + 1)) >= tau
        low, high = (low, middle) if enough else (middle, high)
    return high


def accepted_length(levels: int, tau: float, number: int) -> int:
    """Return how many of ``levels`` guesses the step of a number accepts: geometrically, cut at the tree's depth."""
    chance, drawn = acceptance(levels, tau), (number + 0.5) * GOLDEN % 1
    return next((length for length in range(levels) if chance ** (length + 1) <= drawn), levels)


def graft(
    tree: DraftTree, continuation: Sequence[int], length: int, random: Random
) -> tuple[DraftTree, tuple[int, ...]]:
    """Return a tree that guesses ``length`` tokens of a continuation and no more, and the path that it does so by.

    The path is random. Siblings stay different, and the tree keeps its shape.

    Args:
        continuation: tokens after the root, more than ``length``.
    """
    ends = [node for node, depth in enumerate(tree.depths()) if depth == length]
    path = [random.choice(ends)]
    while path[0]:
        path.insert(0, tree.parents[path[0]])
    tokens, children = list(tree.tokens), tree.children()
    for parent, node, token in zip(path, path[1:], continuation, strict=False):
        twin = next((child for child in children[parent] if tokens[child] == token), node)
        tokens[twin], tokens[node] = tokens[node], token
    taken = {continuation[length], *(tokens[child] for child in children[path[-1]])}
    for child in children[path[-1]]:
        if tokens[child] == continuation[length]:
            tokens[child] = next(token for token in range(len(taken) + 1) if token not in taken)
    return DraftTree(tuple(tokens), tree.parents, tree.log_probs, tree.entropies), tuple(path)


class OracleDrafter(Drafter):
    """Drafter that runs another one and grafts a known answer to its trees.

    Args:
        inner: the drafter whose passes run.
        answer: of the target, from its first token.
        tau: tokens per pass that acceptance is drawn for; less where trees are too shallow.
    """

    needs_draft = grows = True

    def __init__(self, inner: Drafter, answer: Sequence[int], tau: float, seed: int = 0) -> None:
        self.state_layers = inner.state_layers
        self._inner, self._answer, self._tau = inner, tuple(answer), tau
        self._random, self._numbers = Random(seed), count()

    def open(self, context: DraftContext) -> DraftSession:
        return OracleSession(self, self._inner.open(context))

    def graft(self, tree: DraftTree, place: int) -> DraftTree:
        """Graft the answer after its token number ``place``, if the root is that and enough of it is left."""
        rest, levels = self._answer[place:], max(tree.depths())
        if rest[:1] != tree.tokens[:1] or len(rest) < levels + 2:
            return tree
        length = accepted_length(levels, self._tau, next(self._numbers))
        return graft(tree, rest[1:], length, self._random)[0]


class OracleSession(DraftSession):
    """Session of an :class:`OracleDrafter`."""

    def __init__(self, oracle: OracleDrafter, inner: DraftSession) -> None:
        self._oracle, self._inner = oracle, inner
        self._place = 0  # of the root in the answer

    def propose(self, root: int, depth: int) -> DraftTree:
        tree = self._inner.propose(root, depth)
        self.pruned, self.pass_tokens = self._inner.pruned, self._inner.pass_tokens
        return self._oracle.graft(tree, self._place)

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        self._place += len(path)
        self._inner.keep(path, states)

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        self._inner.observe(draft_seconds, target_seconds)
