"""The draft tree: tokens that a draft guessed, and which guess follows which. No torch.

The parent list is the single source; depths, paths, scores and the attention mask are derived
from it. Node 0 is the root: the last emitted token, chosen by the target and not yet in any cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specllava.trace_fields import Many, Record

ROOT_PARENT = -1
MAX_PRUNED = 16  # pruned guesses that are remembered of a tree, the likeliest


@dataclass(frozen=True, slots=True)
class Pruned(Record):
    """A guess that was dropped before the target saw the tree.

    Args:
        parent: the node that it would have followed.
        log_prob: as a node's.
    """

    parent: int
    token: int
    log_prob: float


@dataclass(frozen=True, slots=True)
class DraftTree(Record):
    """A tree of guessed tokens; ``parents[i] < i``, so every prefix of the lists is itself a tree.

    Args:
        tokens: token id of every node; ``tokens[0]`` is the root's.
        parents: parent node of every node; ``parents[0]`` is -1.
        log_probs: ``log q(token | path)`` under the draft, in nats; 0.0 for the root and where unknown.
        entropies: entropy in nats of the draft's next-token distribution *after* each node, which
            decided how the node branched; ``None`` where the draft was not run (unexpanded leaves).

    Raises:
        ValueError: lists of different lengths, no root, or a parent that does not come first.
    """

    tokens: Many[int]
    parents: Many[int]
    log_probs: Many[float]
    entropies: Many[float | None]

    def __post_init__(self) -> None:
        lengths = (len(self.tokens), len(self.parents), len(self.log_probs), len(self.entropies))
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(f"a tree needs one entry per node in every list, at least the root: lengths {lengths}")
        if self.parents[0] != ROOT_PARENT:
            raise ValueError(f"node 0 is the root, its parent must be {ROOT_PARENT}, not {self.parents[0]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: a parent must come before its child")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """Return a tree without branches, of ``tokens`` from the root on; how likely they are is not known."""
        count = len(tokens)
        return cls(tuple(tokens), tuple(range(ROOT_PARENT, count - 1)), (0.0,) * count, (None,) * count)

    def __len__(self) -> int:
        """Count the nodes, the root included: the rows of one verification pass."""
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """Guessed tokens: every node but the root."""
        return len(self.tokens) - 1

    def depths(self) -> tuple[int, ...]:
        """Return the distance of every node from the root."""
        depths = [0] * len(self)
        for node in range(1, len(self)):
            depths[node] = depths[self.parents[node]] + 1
        return tuple(depths)

    def scores(self) -> tuple[float, ...]:
        """Return the cumulative log-prob of every node from the root, in nats."""
        scores = [0.0] * len(self)
        for node in range(1, len(self)):
            scores[node] = scores[self.parents[node]] + self.log_probs[node]
        return tuple(scores)

    def children(self) -> tuple[tuple[int, ...], ...]:
        """Return the children of every node, in node order."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, len(self)):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    def sibling_ranks(self) -> tuple[int, ...]:
        """Return the position of every node among its siblings by draft probability, from 0."""
        ranks = [0] * len(self)
        for family in self.children():
            for rank, node in enumerate(sorted(family, key=lambda n: -self.log_probs[n])):
                ranks[node] = rank
        return tuple(ranks)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root down to ``node``, both included."""
        path = []
        while node != ROOT_PARENT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def first_branch(self) -> tuple[int, ...]:
        """Return the nodes from the root down its first children."""
        children, branch = self.children(), [0]
        while children[branch[-1]]:
            branch.append(children[branch[-1]][0])
        return tuple(branch)

    def subtree(self, nodes: Sequence[int]) -> DraftTree:
        """Return the tree of some nodes, the root first and parents before children."""
        index = {node: number for number, node in enumerate(nodes)} | {ROOT_PARENT: ROOT_PARENT}
        return DraftTree(
            tuple(self.tokens[node] for node in nodes),
            tuple(index[self.parents[node]] for node in nodes),
            tuple(self.log_probs[node] for node in nodes),
            tuple(self.entropies[node] for node in nodes),
        )

    def ancestor_mask(self) -> npt.NDArray[np.bool_]:
        """Return the attention mask ``[nodes, nodes]``: ``i`` attends to ``j`` if ``j`` is ``i`` or lies above it."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node in range(1, len(self)):
            mask[node] |= mask[self.parents[node]]
        return mask
