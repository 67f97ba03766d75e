"""Growth of a draft tree level by level; the draft model is only reached through ``expand``.

The loop is one for all rules. A ``GrowthRule`` decides how many children a node gets, which
nodes of a level are expanded next, and which nodes the target verifies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllava.core.growth.rule import GrowthRule, TopTokens, TreeBuilder
from specllava.core.own_values import integer, integers
from specllava.core.tree import ROOT_PARENT, DraftTree, Pruned

MAX_PRUNED = 16  # pruned guesses that are remembered, the likeliest
# Ids of a level's nodes in the builder, their tokens and their parents' ids, to the top tokens after each.
Expand = Callable[[Sequence[int], Sequence[int], Sequence[int]], list[TopTokens]]


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A finished tree.

    Args:
        builder_ids: of each node of the tree, its id in the builder, which ``expand`` knew it by.
        pruned: guesses below nodes of the tree that are not in it, the likeliest first, :data:`MAX_PRUNED` at most.
    """

    tree: DraftTree
    builder_ids: list[int]
    pruned: tuple[Pruned, ...]


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """Bounds that every rule must keep.

    Args:
        nodes: drafted tokens that the target verifies.
        expanded_nodes: nodes below the root that the draft model runs over, for which its KV cache has columns.
    """

    depth: int
    nodes: int
    expanded_nodes: int


def grow(root: int, expand: Expand, rule: GrowthRule, limits: GrowthLimits) -> GrownTree:
    """Grow a tree below ``root``.

    Args:
        expand: called once per level with nodes whose parents were expanded before.

    Raises:
        ValueError: the rule breaks ``limits``, returns what is no integer, expands what is no node of the level, or
            selects a child without its parent; one line that names the rule.
    """
    builder, returns = TreeBuilder([root]), f"of the rule {rule.name} returns"
    frontier, expanded, max_children = [0], 0, integer(rule.max_children, f"max_children {returns}")
    for _ in range(limits.depth):
        guesses = expand(
            frontier, [builder.tokens[n] for n in frontier], [builder.parents[n] for n in frontier]
        )
        level: list[int] = []
        for node, top in zip(frontier, guesses, strict=True):
            builder.entropies[node] = top.entropy
            count = rule.num_children(builder, node, top)
            if type(count) is not int:
                count = integer(count, f"num_children() {returns}")
            if not 0 <= count <= max_children:
                raise ValueError(
                    f"the rule {rule.name} wants {count} children of one node: 0 to its max_children,"
                    f" {max_children}"
                )
            best = zip(top.tokens[:count], top.log_probs[:count], strict=True)
            level += [builder.add(token, node, rank, log_prob) for rank, (token, log_prob) in enumerate(best)]
        frontier = integers(rule.frontier(builder, level), f"frontier() {returns}")
        if not frontier:
            break
        expanded += len(frontier)
        _check_frontier(rule, frontier, level, expanded, limits)
    return _select_tree(builder, rule, limits)


def _check_frontier(
    rule: GrowthRule, frontier: Sequence[int], level: Sequence[int], expanded: int, limits: GrowthLimits
) -> None:
    if expanded > limits.expanded_nodes:
        raise ValueError(
            f"the rule {rule.name} expands {expanded} nodes of one tree, at most {limits.expanded_nodes} are allowed:"
            " raise width, depth or nodes, or return fewer from frontier()"
        )
    if (len(frontier) > 1 and len(set(frontier)) < len(frontier)) or not set(frontier) <= set(level):
        raise ValueError(f"the rule {rule.name} expands {list(frontier)[:8]}: not different nodes of the level")


def _select_tree(builder: TreeBuilder, rule: GrowthRule, limits: GrowthLimits) -> GrownTree:
    """Build the tree of the nodes that the rule selects (EAGLE-2: re-ranking), and list those that it prunes."""
    kept = [0]
    if len(builder.tokens) > 1:
        kept += integers(rule.select(builder), f"select() of the rule {rule.name} returns")
    index = {node: position for position, node in enumerate(kept)} | {ROOT_PARENT: ROOT_PARENT}
    _check_selection(builder, rule, kept, index, limits)
    tree = DraftTree(
        tokens=tuple(builder.tokens[node] for node in kept),
        parents=tuple(index[builder.parents[node]] for node in kept),
        log_probs=tuple(round(builder.log_probs[node], 7) for node in kept),
        entropies=tuple(None if (e := builder.entropies[node]) is None else round(e, 7) for node in kept),
    )
    dropped = [node for node in range(1, len(builder.tokens)) if node not in index and builder.parents[node] in index]
    likeliest = heapq.nlargest(MAX_PRUNED, dropped, key=lambda node: builder.scores[node])
    pruned = (Pruned(index[builder.parents[n]], builder.tokens[n], round(builder.log_probs[n], 7)) for n in likeliest)
    return GrownTree(tree, kept, tuple(pruned))


def _check_selection(
    builder: TreeBuilder, rule: GrowthRule, kept: Sequence[int], index: dict[int, int], limits: GrowthLimits
) -> None:
    if len(kept) - 1 > limits.nodes:
        raise ValueError(f"the rule {rule.name} selects {len(kept) - 1} nodes, at most {limits.nodes} are allowed")
    size = len(builder.tokens)
    if len(index) != len(kept) + 1 or not all(0 <= node < size for node in kept):
        raise ValueError(f"the rule {rule.name} selects {kept[1:9]}: not different nodes from 1 to {size - 1}")
    orphan = next((node for node in kept[1:] if index.get(builder.parents[node], size) >= index[node]), None)
    if orphan is not None:
        raise ValueError(
            f"the rule {rule.name} selects node {orphan} without its parent {builder.parents[orphan]} before it"
        )
