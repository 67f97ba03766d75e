"""Growth of a draft tree level by level; the draft model is only reached through ``expand``. No torch.

The loop is one for all rules. A ``GrowthRule`` decides how many children a node gets, which
nodes of a level are expanded next, and which nodes the target verifies.
"""

from __future__ import annotations

import heapq
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

from specllava.config import MAX_GUESSES, DecodingConfig, short
from specllava.tree import MAX_PRUNED, ROOT_PARENT, DraftTree, Pruned


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The draft's next-token distribution after one node, as far as growth needs it.

    Args:
        tokens: most likely tokens, best first; drawn ones where children are drawn. There may be fewer than
            ``max_children``, even none, where tokens are forbidden.
        log_probs: their log-probabilities in nats.
        entropy: of the whole distribution, in nats.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    entropy: float


@dataclass(slots=True)
class TreeBuilder:
    """A tree under construction; node 0 is the root.

    ``scores`` are cumulative log-probabilities in nats, ``ranks`` positions among siblings, 0 for the draft's best.
    """

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


class GrowthRule(ABC):
    """Interface of a tree rule: which nodes get children, when growth stops, what the target verifies; one per answer.

    The limits of ``DecodingConfig`` bind every rule, and ``grow`` refuses what exceeds them. A tree has ``depth``
    levels, ``nodes`` guesses and ``max(depth * width, nodes)`` expanded nodes at most.
    """

    drawable: bool = False
    """Which siblings its trees have does not depend on their tokens, so children may be drawn from the draft."""

    @property
    def name(self) -> str:
        """Name in a trace."""
        return type(self).__name__

    @property
    @abstractmethod
    def max_children(self) -> int:
        """The largest number of children that the rule may ask for."""

    @abstractmethod
    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        """Return the number of children of ``node``, after which the draft expects ``top``."""

    @abstractmethod
    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        """Return the nodes of the newest level to expand next; none ends the growth.

        Nodes whose token ends the answer are not in ``level``.
        """

    @abstractmethod
    def select(self, builder: TreeBuilder) -> list[int]:
        """Return the nodes for the target to verify, in growing order, without the root; parents before children."""


# Of a builder and a level's node ids in it: the top tokens after each of these nodes.
Expand = Callable[[TreeBuilder, Sequence[int]], list[TopTokens]]


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A finished tree.

    Args:
        builder_ids: of each node of the tree, its id in the builder, as ``expand`` was given it.
        pruned: guesses below nodes of the tree that are not in it, the likeliest first, :data:`MAX_PRUNED` at most.
    """

    tree: DraftTree
    builder_ids: list[int]
    pruned: tuple[Pruned, ...]


def grow(
    root: int, expand: Expand, rule: GrowthRule, depth: int, config: DecodingConfig, ends: frozenset[int] = frozenset()
) -> GrownTree:
    """Grow a tree below ``root``.

    Args:
        expand: called once per level with the builder and the ids of nodes whose parents were expanded before.
        depth: levels at most.
        config: whose ``nodes`` and ``max_expanded_nodes`` bind the rule.
        ends: tokens that end an answer; nodes with them are not expanded.

    Raises:
        ValueError: the rule breaks a limit, returns no integers, expands no nodes of the level, or selects a child
            without its parent; one line that names the rule.
    """
    builder, most, level, expanded = TreeBuilder([root]), max_children(rule), [0], 0
    for number in range(depth):
        frontier = _frontier(builder, rule, level, config.max_expanded_nodes - expanded) if number else level
        if not frontier:
            break
        expanded += len(frontier) if number else 0
        level = []
        for node, top in zip(frontier, expand(builder, frontier), strict=True):
            builder.entropies[node] = top.entropy
            (count,) = integers((rule.num_children(builder, node, top),), f"the rule {rule.name} wants num_children")
            if not 0 <= count <= most:
                raise ValueError(f"the rule {rule.name} wants {count} children of one node: 0 to max_children, {most}")
            best = zip(top.tokens[:count], top.log_probs[:count], strict=True)
            level += [builder.add(token, node, rank, log_prob) for rank, (token, log_prob) in enumerate(best)]
        level = [node for node in level if builder.tokens[node] not in ends]
        if not level:
            break
    return _select_tree(builder, rule, config.nodes)


def max_children(rule: GrowthRule) -> int:
    """Return the largest number of children that a rule may ask for, as a plain integer.

    Raises:
        ValueError: no integer from 0 to the guesses of the largest tree; one line that names the rule.
    """
    (most,) = integers((rule.max_children,), f"the rule {rule.name} has max_children")
    if not 0 <= most <= MAX_GUESSES:
        raise ValueError(f"the rule {rule.name} has max_children {most}: 0 to {MAX_GUESSES} are allowed")
    return most


def _frontier(builder: TreeBuilder, rule: GrowthRule, level: Sequence[int], most: int) -> list[int]:
    """Return the nodes of a level that the rule expands, ``most`` at most."""
    about = f"the rule {rule.name} expands"
    frontier = integers(rule.frontier(builder, level), about)
    if len(frontier) > most:
        raise ValueError(f"{about} {len(frontier)} more nodes, {most} are allowed: raise width, depth or nodes")
    if len(set(frontier)) < len(frontier) or not set(frontier) <= set(level):
        raise ValueError(f"{about} {frontier[:8]}: not different nodes of the level")
    return frontier


def _select_tree(builder: TreeBuilder, rule: GrowthRule, most: int) -> GrownTree:
    """Build the tree of the nodes that the rule selects (EAGLE-2: re-ranking), and list those that it prunes."""
    size, about = len(builder.tokens), f"the rule {rule.name} selects"
    selected = integers(rule.select(builder), about) if size > 1 else []
    if len(selected) > most:
        raise ValueError(f"{about} {len(selected)} nodes, at most {most} are allowed")
    index = {ROOT_PARENT: ROOT_PARENT, 0: 0}  # of each selected node, its number in the tree
    for number, node in enumerate(selected, start=1):
        if node in index or not 0 < node < size:
            raise ValueError(f"{about} {selected[:8]}: not different nodes from 1 to {size - 1}")
        if builder.parents[node] not in index:
            raise ValueError(f"{about} node {node} without its parent {builder.parents[node]} before it")
        index[node] = number
    in_tree = [0, *selected]
    tree = DraftTree(
        tokens=tuple(builder.tokens[node] for node in in_tree),
        parents=tuple(index[builder.parents[node]] for node in in_tree),
        log_probs=tuple(round(builder.log_probs[node], 7) for node in in_tree),
        entropies=tuple(None if (e := builder.entropies[node]) is None else round(e, 7) for node in in_tree),
    )
    dropped = [node for node in range(1, len(builder.tokens)) if node not in index and builder.parents[node] in index]
    likeliest = heapq.nlargest(MAX_PRUNED, dropped, key=lambda node: builder.scores[node])
    pruned = (Pruned(index[builder.parents[n]], builder.tokens[n], round(builder.log_probs[n], 7)) for n in likeliest)
    return GrownTree(tree, in_tree, tuple(pruned))


def integers(values: Iterable[SupportsIndex], about: str) -> list[int]:
    """Return integers in any form, such as NumPy's or tensors of one element, as plain ones.

    Args:
        about: begins a refusal, such as ``the rule X selects``.

    Raises:
        ValueError: other values; one line.
    """
    try:
        return [int(operator.index(value)) for value in values]
    except (TypeError, RuntimeError) as error:  # such as a tensor of several elements
        raise ValueError(f"{about} {short(values)}: not integers") from error
