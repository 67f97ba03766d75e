"""A drafter that is right with a set probability, since it knows the answer: speed-ups without trained weights.

Another drafter's passes run, for what they cost. Then the known continuation replaces its guesses along one branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from random import Random
from typing import Final

from torch import Tensor

from specllava.engine.engine import PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.prompt import Prompt
from specllava.spec_decode.drafter import Drafter
from specllava.tree import DraftTree

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


def graft(tree: DraftTree, continuation: Sequence[int], path: Sequence[int]) -> DraftTree:
    """Return a tree of the same shape that guesses a continuation along a path of nodes, and no further.

    Siblings stay different.

    Args:
        continuation: tokens after the root, at least one more than the path has guesses.
        path: from the root on.
    """
    length = len(path) - 1
    tokens, children = list(tree.tokens), tree.children()
    for parent, node, token in zip(path, path[1:], continuation, strict=False):
        twin = next((child for child in children[parent] if tokens[child] == token), node)
        tokens[twin], tokens[node] = tokens[node], token
    taken = {continuation[length], *(tokens[child] for child in children[path[-1]])}
    for child in children[path[-1]]:
        if tokens[child] == continuation[length]:
            tokens[child] = next(token for token in range(len(taken) + 1) if token not in taken)
    return DraftTree(tuple(tokens), tree.parents, tree.log_probs, tree.entropies)


class OracleDrafter(Drafter):
    """Drafter that runs another one and grafts a known answer to its trees. It serves one answer.

    Args:
        inner: the drafter whose passes run.
        answer: of the target, from its first token.
        tau: tokens per pass that acceptance is drawn for; less where trees are too shallow.
        first: graft to the first branch; else to a random one.
        start: number of its first step, so that each answer draws other lengths.
    """

    def __init__(self, inner: Drafter, answer: Sequence[int], tau: float, first: bool = False, start: int = 0) -> None:
        self.state_layers = inner.state_layers
        self._inner, self._answer, self._tau, self._first = inner, tuple(answer), tau, first
        self._random, self._numbers, self._place = Random(start), count(start), 0

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        self._inner.begin(prompt, prefill, caches)

    def propose(self, root: int, depth: int) -> DraftTree:
        tree = self._inner.propose(root, depth)
        rest, nodes = self._answer[self._place :], tree.first_branch() if self._first else range(len(tree))
        depths = tree.depths()
        levels = max(depths[node] for node in nodes)
        if rest[:1] != (root,) or len(rest) < levels + 2:
            return tree
        length = accepted_length(levels, self._tau, next(self._numbers))
        ends = [node for node in nodes if depths[node] == length]
        return graft(tree, rest[1:], tree.path(self._random.choice(ends)))

    def commit(self, path: Sequence[int], states: Tensor | None) -> None:
        self._place += len(path)
        self._inner.commit(path, states)
