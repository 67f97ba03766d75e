"""The first branch of a tree, which is all that exact passes verify. No torch.

A pass writes a column per node, in the order of the tree. A node has the column that the text alone would give it
if the same holds for its ancestors and its column is its depth after the root's. That is one branch at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specllava.core.growth.grow import MAX_PRUNED
from specllava.core.tree import DraftTree, Pruned


@dataclass(frozen=True, slots=True)
class FirstBranch:
    """A tree cut down to its first branch.

    Args:
        nodes: of the whole tree, the root first.
        tree: of these nodes, a chain.
        pruned: guesses beside it, as :attr:`GrownTree.pruned`.
    """

    nodes: tuple[int, ...]
    tree: DraftTree
    pruned: tuple[Pruned, ...]


def first_branch(tree: DraftTree, pruned: Sequence[Pruned], most: int) -> FirstBranch:
    """Cut a tree down to the branch of first children, ``most`` guesses at most.

    Args:
        pruned: guesses that the tree was grown without; those beside the branch stay.
    """
    children, nodes = tree.children(), [0]
    while len(nodes) <= most and children[nodes[-1]]:
        nodes.append(children[nodes[-1]][0])
    place = {node: number for number, node in enumerate(nodes)}
    cut = (
        Pruned(place[parent], tree.tokens[node], tree.log_probs[node])
        for node, parent in enumerate(tree.parents)
        if parent in place and node not in place
    )
    beside = (Pruned(place[one.parent], one.token, one.log_prob) for one in pruned if one.parent in place)
    chain = DraftTree(
        tuple(tree.tokens[node] for node in nodes),
        tuple(range(-1, len(nodes) - 1)),
        tuple(tree.log_probs[node] for node in nodes),
        tuple(tree.entropies[node] for node in nodes),
    )
    return FirstBranch(tuple(nodes), chain, (*cut, *beside)[:MAX_PRUNED])
