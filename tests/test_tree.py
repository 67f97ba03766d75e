"""Everything that a tree derives from its parent list, against the most naive way to say it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from support.models import trees

from specllava.core.tree import ROOT_PARENT, DraftTree


def climb(tree: DraftTree, node: int) -> list[int]:
    """Nodes from ``node`` up to the root."""
    line = [node]
    while line[-1] != 0:
        line.append(tree.parents[line[-1]])
    return line


@given(trees())
def test_paths_lead_from_the_root_to_the_node(tree: DraftTree):
    for node in range(len(tree)):
        assert tree.path(node) == tuple(climb(tree, node)[::-1])


@given(trees())
def test_depth_counts_the_steps_from_the_root(tree: DraftTree):
    assert tree.depths() == tuple(len(climb(tree, node)) - 1 for node in range(len(tree)))


@given(trees())
def test_scores_add_up_the_path(tree: DraftTree):
    for node, score in enumerate(tree.scores()):
        assert score == pytest.approx(math.fsum(tree.log_probs[n] for n in climb(tree, node)), abs=1e-9)


@given(trees())
def test_scores_never_rise_along_a_path(tree: DraftTree):
    scores = tree.scores()
    assert all(scores[node] <= scores[tree.parents[node]] for node in range(1, len(tree)))


@given(trees())
def test_children_are_the_inverse_of_parents(tree: DraftTree):
    nodes = range(len(tree))
    assert tree.children() == tuple(tuple(c for c in nodes if c > 0 and tree.parents[c] == n) for n in nodes)


@given(trees())
def test_sibling_rank_counts_the_likelier_siblings(tree: DraftTree):
    ranks = tree.sibling_ranks()
    for node in range(1, len(tree)):
        siblings = [n for n in range(1, len(tree)) if tree.parents[n] == tree.parents[node]]
        likelier = [n for n in siblings if (-tree.log_probs[n], n) < (-tree.log_probs[node], node)]
        assert ranks[node] == len(likelier)


@given(trees())
def test_a_node_sees_exactly_its_own_path(tree: DraftTree):
    mask = tree.ancestor_mask()
    for seer in range(len(tree)):
        for seen in range(len(tree)):
            assert mask[seer, seen] == (seen in climb(tree, seer))


@given(trees())
def test_every_prefix_of_the_lists_is_a_tree(tree: DraftTree):
    for count in range(1, len(tree) + 1):
        part = DraftTree(tree.tokens[:count], tree.parents[:count], tree.log_probs[:count], tree.entropies[:count])
        assert part.drafted == count - 1
        assert part.depths() == tree.depths()[:count]


def test_only_root_has_no_guess():
    tree = DraftTree.only_root(7)
    assert (len(tree), tree.drafted, tree.tokens, tree.children()) == (1, 0, (7,), ((),))


@pytest.mark.parametrize(
    ("tokens", "parents", "log_probs", "entropies", "complaint"),
    [
        ((), (), (), (), "at least the root"),
        ((1, 2), (ROOT_PARENT,), (0.0, -1.0), (None, None), r"lengths \(2, 1, 2, 2\)"),
        ((1,), (ROOT_PARENT, 0), (0.0, -1.0), (None, None), r"lengths \(1, 2, 2, 2\)"),
        ((1, 2), (ROOT_PARENT, 0), (0.0,), (None, None), r"lengths \(2, 2, 1, 2\)"),
        ((1, 2), (ROOT_PARENT, 0), (0.0, -1.0), (None,), r"lengths \(2, 2, 2, 1\)"),
        ((1,), (0,), (0.0,), (None,), "its parent must be -1, not 0"),
        ((1, 2), (ROOT_PARENT, ROOT_PARENT), (0.0, -1.0), (None, None), "node 1 has parent -1"),
        ((1, 2), (ROOT_PARENT, 1), (0.0, -1.0), (None, None), "node 1 has parent 1"),
        ((1, 2, 3), (ROOT_PARENT, 2, 0), (0.0, -1.0, -1.0), (None, None, None), "node 1 has parent 2"),
    ],
)
def test_malformed_lists_are_refused(tokens, parents, log_probs, entropies, complaint):
    with pytest.raises(ValueError, match=complaint):
        DraftTree(tokens, parents, log_probs, entropies)
