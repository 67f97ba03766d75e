"""A known answer grafted to trees: accepted as far as designed and no further, in a tree of the draft's own shape."""

from __future__ import annotations

import statistics
from itertools import product
from random import Random

import pytest
import torch

from benchmarks.gpu.oracle import OracleDrafter, acceptance, accepted_length, graft
from benchmarks.gpu_llava import LANES, PICTURE, QUESTION
from benchmarks.shared.random_pair import build
from specllava.core.tree import DraftTree
from specllava.decoding import stream
from specllava.drafters.build import build_drafter
from specllava.lane import Lane

WORDS = 9  # few, so that a guess is the answer's token by chance


def random_tree(random: Random) -> DraftTree:
    """A tree whose siblings differ."""
    tokens, parents = [0], [-1]
    for _ in range(random.randint(1, 20)):
        parent = random.randrange(len(tokens))
        siblings = {tokens[node] for node, one in enumerate(parents) if one == parent}
        if len(siblings) < WORDS - 1:
            tokens.append(random.choice([word for word in range(WORDS) if word not in siblings]))
            parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents), (0.0,) * len(tokens), (None,) * len(tokens))


def followed(tree: DraftTree, continuation: list[int]) -> list[int]:
    """The nodes that agree with a continuation, from the root on."""
    path = [0]
    for token in continuation:
        below = [node for node in range(len(tree)) if tree.parents[node] == path[-1] and tree.tokens[node] == token]
        if not below:
            break
        path += below
    return path


@pytest.mark.parametrize("seed", range(60))
def test_a_graft_is_accepted_for_its_length_and_keeps_the_tree(seed: int):
    random = Random(seed)
    tree = random_tree(random)
    for length in range(max(tree.depths()) + 1):
        continuation = [random.randrange(WORDS) for _ in range(length + 1)]
        grafted, path = graft(tree, continuation, length, random)
        assert followed(grafted, continuation) == list(path) and len(path) == length + 1
        assert (grafted.parents, grafted.log_probs) == (tree.parents, tree.log_probs)
        assert grafted.tokens[0] == tree.tokens[0]
        for node in range(len(tree)):
            below = [grafted.tokens[child] for child in range(len(tree)) if tree.parents[child] == node]
            assert len(set(below)) == len(below)


def test_paths_differ():
    tree = DraftTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 2), (0.0,) * 5, (None,) * 5)
    random = Random(0)
    assert {graft(tree, [5, 6, 7], 2, random)[1] for _ in range(20)} == {(0, 1, 3), (0, 2, 4)}


@pytest.mark.parametrize(("levels", "tau"), product([3, 5, 8], [1.5, 2.0, 3.0, 4.0]))
def test_lengths_are_geometric_with_the_designed_mean(levels: int, tau: float):
    lengths = [accepted_length(levels, tau, number) for number in range(400)]
    assert 1 + statistics.mean(lengths) == pytest.approx(tau, abs=0.02)
    chance = acceptance(levels, tau)
    for level in range(1, levels + 1):
        assert sum(length >= level for length in lengths) / 400 == pytest.approx(chance**level, abs=0.02)
    for start in range(0, 400, 24):  # as few as are timed
        assert 1 + statistics.mean(lengths[start : start + 24]) == pytest.approx(tau, abs=0.4)


def test_a_tree_too_shallow_is_accepted_whole():
    assert {accepted_length(2, 4.0, number) for number in range(20)} == {2}


@pytest.mark.parametrize("lane", ["chain", "top 10, EAGLE-2"])
def test_the_drafts_own_passes_run_and_the_answer_stays(lane: str):
    pair = build("toy", torch.device("cpu"), torch.float64)
    prompt = pair.prompt(PICTURE, QUESTION, 128)

    def answer(drafter: OracleDrafter | None) -> tuple[list[int], list[tuple[int, ...]], list[int]]:
        request = pair.request(Lane(lane, LANES[lane], prompt, drafter=drafter))
        widths, nodes = [], []
        for event in stream(request):
            if hasattr(event, "tree"):
                widths.append(request.draft_pass_tokens)
                nodes.append(len(event.tree))
        return request.emitted, widths, nodes

    own, widths, nodes = answer(None)
    known, known_widths, known_nodes = answer(OracleDrafter(build_drafter("model", pair.draft), own, 3.0))
    assert known == own
    assert len(known) / len(known_nodes) == pytest.approx(3.0, abs=0.4) and len(nodes) > 2 * len(known_nodes)
    assert {len(one) for one in known_widths[:-4]} == {len(one) for one in widths[:20]}  # a pass for each level
