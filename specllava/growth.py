"""How a draft tree grows: level by level, asking a model only through ``expand``.

The loop is one for all rules. A rule (``rules``) says how many children a node gets, which nodes of a level are
asked next, and which nodes go to the target; it sees log-probabilities and nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specllava.tree import ROOT_PARENT, DraftTree, Pruned

MOST_PRUNED = 16  # pruned guesses that are remembered, the likeliest


@dataclass(frozen=True, slots=True)
class Guess:
    """The draft's next-token distribution after one node, as far as growth needs it.

    Args:
        tokens: most likely tokens, best first.
        log_probs: their log-probabilities in nats.
        entropy: of the whole distribution, in nats.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    entropy: float


# Node ids of a level, their tokens and their parents' ids, to a guess each.
Expand = Callable[[Sequence[int], Sequence[int], Sequence[int]], list[Guess]]


@dataclass(slots=True)
class Sprout:
    """A tree under construction; node 0 is the root. ``scores`` are cumulative log-probabilities."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    ranks: list[int] = field(default_factory=lambda: [0])
    log_probs: list[float] = field(default_factory=lambda: [0.0])
    scores: list[float] = field(default_factory=lambda: [0.0])
    entropies: list[float | None] = field(default_factory=lambda: [None])

    def add(self, token: int, parent: int, rank: int, log_prob: float) -> int:
        """A new node, the child number ``rank`` of its parent; its id."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.ranks.append(rank)
        self.log_probs.append(log_prob)
        self.scores.append(self.scores[parent] + log_prob)
        self.entropies.append(None)
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Grown:
    """What became of a sprout.

    Args:
        tree: for the target to check.
        names: for each node of the tree, the number that ``expand`` knew it by.
        pruned: guesses below nodes of the tree that are not in it, the likeliest first, :data:`MOST_PRUNED` at most.
    """

    tree: DraftTree
    names: list[int]
    pruned: tuple[Pruned, ...]


class GrowthRule(Protocol):
    """Who gets children, when to stop, and what the target gets to see. One per answer: it may learn as it goes."""

    @property
    def most(self) -> int:
        """The largest number of children that the rule may ask for."""
        ...

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        """Children of ``node``, after which the draft expects ``guess``."""
        ...

    def frontier(self, sprout: Sprout, level: Sequence[int]) -> list[int]:
        """The nodes of the newest level whose children the draft shall guess; none ends the growth."""
        ...

    def kept(self, sprout: Sprout) -> list[int]:
        """The nodes for the target to check, in growing order, without the root; parents are kept with children."""
        ...

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        """The target kept ``path`` (the root first) of the last tree."""
        ...


def grow(root: int, expand: Expand, rule: GrowthRule, depth: int) -> Grown:
    """Grow a tree below ``root``, at most ``depth`` levels deep.

    Args:
        expand: called once per level with nodes whose parents were expanded before.
    """
    sprout = Sprout([root])
    frontier = [0]
    for _ in range(depth):
        asked = expand(frontier, [sprout.tokens[n] for n in frontier], [sprout.parents[n] for n in frontier])
        level: list[int] = []
        for node, guess in zip(frontier, asked, strict=True):
            sprout.entropies[node] = guess.entropy
            wanted = rule.branches(sprout, node, guess)
            best = zip(guess.tokens[:wanted], guess.log_probs[:wanted], strict=True)
            level += [sprout.add(token, node, rank, log_prob) for rank, (token, log_prob) in enumerate(best)]
        frontier = rule.frontier(sprout, level)
        if not frontier:
            break
    return _harvest(sprout, rule)


def _harvest(sprout: Sprout, rule: GrowthRule) -> Grown:
    kept = [0, *rule.kept(sprout)] if len(sprout.tokens) > 1 else [0]
    place = {node: index for index, node in enumerate(kept)} | {ROOT_PARENT: ROOT_PARENT}
    tree = DraftTree(
        tokens=tuple(sprout.tokens[node] for node in kept),
        parents=tuple(place[sprout.parents[node]] for node in kept),
        log_probs=tuple(round(sprout.log_probs[node], 7) for node in kept),
        entropies=tuple(None if (e := sprout.entropies[node]) is None else round(e, 7) for node in kept),
    )
    dropped = [node for node in range(1, len(sprout.tokens)) if node not in place and sprout.parents[node] in place]
    likeliest = heapq.nlargest(MOST_PRUNED, dropped, key=lambda node: sprout.scores[node])
    pruned = (Pruned(place[sprout.parents[n]], sprout.tokens[n], round(sprout.log_probs[n], 7)) for n in likeliest)
    return Grown(tree, kept, tuple(pruned))
