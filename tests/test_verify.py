"""The verdict is the longest branch that the target agrees with, cut once at the end of the answer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import random_tree, trees

from specllava.core.tree import DraftTree
from specllava.decoding import clip
from specllava.verification.verifier import target_view, verify_greedy

VOCABULARY = 6


@st.composite
def judged_trees(draw: st.DrawFn) -> tuple[DraftTree, list[int]]:
    """A tree and the target's choices, which agree with some child more often than chance would have it."""
    tree = draw(trees(vocabulary=VOCABULARY))
    choices = []
    for family in tree.children():
        anything = st.integers(0, VOCABULARY - 1)
        choices.append(draw(st.sampled_from([tree.tokens[n] for n in family]) | anything if family else anything))
    return tree, choices


def agreed(tree: DraftTree, choices: list[int], node: int) -> bool:
    """The target would say every token on the way to ``node``."""
    path = tree.path(node)
    return all(tree.tokens[child] == choices[parent] for parent, child in pairwise(path))


@given(judged_trees())
def test_the_longest_agreed_branch_is_accepted(judged: tuple[DraftTree, list[int]]):
    tree, choices = judged
    longest = max((tree.path(node) for node in range(len(tree)) if agreed(tree, choices, node)), key=len)
    verdict = verify_greedy(tree, choices)
    assert verdict.path == longest
    assert verdict.bonus_token == choices[longest[-1]]


@given(judged_trees())
def test_the_next_token_was_not_on_offer(judged: tuple[DraftTree, list[int]]):
    tree, choices = judged
    verdict = verify_greedy(tree, choices)
    assert verdict.bonus_token not in [tree.tokens[child] for child in tree.children()[verdict.path[-1]]]


@pytest.mark.parametrize("spine", range(13))
def test_a_deep_branch_is_accepted_as_far_as_the_target_agrees(spine: int):
    """A spine of guesses with refused ones beside each; the target agrees with its first few."""
    for agreement in range(spine + 1):
        for siblings in range(3):
            tokens, parents, choices, node = [0], [-1], [], 0
            for depth in range(spine):
                family = [1 + (depth + place) % (VOCABULARY - 1) for place in range(siblings + 1)]
                choices.append((node, family[siblings] if depth < agreement else 0))
                tokens += family
                parents += [node] * len(family)
                node = len(tokens) - 1
            wanted = [0] * len(tokens)
            for parent, token in choices:
                wanted[parent] = token
            tree = DraftTree(tuple(tokens), tuple(parents), (0.0,) * len(tokens), (None,) * len(tokens))
            verdict = verify_greedy(tree, wanted)
            assert verdict.accepted == tuple((siblings + 1) * depth for depth in range(1, agreement + 1))
            assert verdict.bonus_token == 0


@pytest.mark.parametrize("room", range(1, 8))
@pytest.mark.parametrize("ends", [(), (0,), (1,), (2,), (3,), (4,), (0, 4), (2, 3)])
def test_clip_stops_behind_the_first_end_or_when_the_room_is_full(room: int, ends: tuple[int, ...]):
    tokens = [99 if place in ends else place for place in range(5)]
    wanted = []
    for token in tokens:
        if len(wanted) < room and 99 not in wanted:
            wanted.append(token)
    assert clip(tokens, room, frozenset({99})) == tuple(wanted)


@pytest.mark.parametrize("end", [0, 2, 4])
def test_clip_knows_every_token_that_ends_an_answer(end: int):
    assert clip([0, 1, 2, 3, 4], 5, frozenset({end, 77})) == tuple(range(end + 1))


@pytest.mark.parametrize("seed", range(10))
def test_the_view_is_what_softmax_says(seed: int):
    tree = random_tree(seed)
    logits = np.random.default_rng(seed).normal(scale=3, size=(len(tree), 280))
    view = target_view(tree, torch.from_numpy(logits), torch.from_numpy(logits).softmax(-1))
    for node, row in enumerate(logits):
        probs = np.exp(row) / np.exp(row).sum()
        assert view.choices[node] == row.argmax()
        assert view.choice_probs[node] == pytest.approx(probs.max(), abs=1e-6)
        assert view.margins[node] == pytest.approx(np.diff(np.sort(row)[-2:])[0], abs=1e-6)
        if node > 0:
            own = logits[tree.parents[node], tree.tokens[node]]
            before = np.exp(logits[tree.parents[node]])
            assert view.token_probs[node] == pytest.approx(np.exp(own) / before.sum(), abs=1e-6)
            assert view.token_ranks[node] == (logits[tree.parents[node]] > own).sum()
    assert (view.token_probs[0], view.token_ranks[0]) == (1.0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_at_a_tie_the_view_shows_the_choice_that_was_made(seed: int):
    """Half precision ties often; the page must not name another token than the one that was emitted."""
    tree = random_tree(seed)
    logits = torch.randint(0, 3, (len(tree), 280), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    view = target_view(tree, logits, logits.double().softmax(-1))
    assert view.choices == tuple(logits.argmax(-1).tolist())
    assert set(view.margins) == {0.0}


def test_a_tree_without_guesses_has_a_view_too():
    view = target_view(DraftTree.only_root(3), logits := torch.tensor([[0.0, 2.0, 1.0]]), logits.softmax(-1))
    assert (view.choices, view.margins, view.token_probs) == ((1,), (1.0,), (1.0,))
