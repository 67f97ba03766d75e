"""Greedy verification: the target's most likely tokens in, the accepted branch out. Needs no model and no cache."""

from __future__ import annotations

from collections.abc import Sequence

from specllava.core.tree import DraftTree
from specllava.core.verdict import Verification


def verify_greedy(tree: DraftTree, choices: Sequence[int]) -> Verification:
    """Return the longest branch that the target agrees with, and the target's own token behind it.

    Walks from the root while a child carries the target's choice; the same as going from the leaves to the
    root and cutting at the first mismatch (Spec-LLaVA, arXiv 2509.11961, section 3).

    Args:
        choices: the target's most likely token after each node.
    """
    children = tree.children()
    accepted: list[int] = []
    node = 0
    while True:
        match = next((child for child in children[node] if tree.tokens[child] == choices[node]), None)
        if match is None:
            return Verification(tuple(accepted), choices[node])
        accepted.append(match)
        node = match
