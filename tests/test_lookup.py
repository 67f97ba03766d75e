"""Prompt lookup finds what a plain search finds, and its trees are the continuations merged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models

from specllava.config import DecodingConfig
from specllava.spec_decode.loop import Lane
from specllava.spec_decode.ngram_drafter import MAX_MATCHES, NgramDrafter, continuations, merge
from specllava.tree import DraftTree

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def plain_search(text: list[int], longest: int, depth: int) -> list[tuple[int, ...]]:
    for length in range(longest, 0, -1):
        found = []
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                found.append(tuple(text[start + length : start + length + depth]))
        if found and length < len(text):
            return found[:MAX_MATCHES]
    return []


@given(texts, st.integers(1, 4), st.integers(0, 6))
def test_continuations_are_what_a_plain_search_finds(text: list[int], longest: int, depth: int):
    assert continuations(text, longest, depth) == plain_search(text, longest, depth)


@given(texts, st.integers(1, 4), st.integers(1, 6), st.integers(1, 30))
@settings(max_examples=200)
def test_the_tree_is_the_continuations_merged(text: list[int], longest: int, depth: int, nodes: int):
    found = continuations(text, longest, depth)
    tree = merge(9, found, nodes)
    paths = [tuple(tree.tokens[step] for step in tree.path(node))[1:] for node in range(1, len(tree))]
    everything = {path[:end] for path in found for end in range(1, len(path) + 1)}
    assert len(set(paths)) == len(paths) == min(nodes, len(everything))
    assert set(paths) <= everything
    for node, path in enumerate(paths, start=1):
        share = sum(other[: len(path)] == path for other in found) / len(found)
        assert math.exp(tree.scores()[node]) == pytest.approx(share, abs=1e-5)
    kept = sorted((sum(other[: len(p)] == p for other in found) for p in paths), reverse=True)
    best = sorted((sum(other[: len(p)] == p for other in found) for p in everything), reverse=True)
    assert kept == best[: len(kept)]


def test_by_hand():
    text = [5, 1, 2, 7, 1, 2, 8, 1, 2]
    assert continuations(text, 3, 3) == [(8, 1, 2), (7, 1, 2)]
    tree = merge(2, continuations(text, 3, 2), 9)
    assert tree.tokens == (2, 8, 7, 1, 1)
    assert tree.parents == (-1, 0, 0, 1, 2)
    assert tree.entropies[0] == pytest.approx(math.log(2))
    assert tree.entropies[1] == 0.0 and tree.entropies[3] is None


def test_nothing_said_before_means_nothing_proposed():
    drafter, config = NgramDrafter(3, 20), DecodingConfig(max_new_tokens=1)
    lane = Lane("own", config, replace(models.prompt(3), input_ids=torch.tensor([[11, 12, 13]])), drafter=drafter)
    models.pair(None).request(lane).prefill()
    assert drafter.propose(14, 5) == DraftTree.only_root(14)
    drafter.commit((0,), None)
    assert drafter.propose(12, 5).tokens == (12, 13, 14, 12)


def test_the_image_marker_is_neither_proposed_nor_looked_for():
    assert continuations([1, 9, 9, 2, 1], 1, 3, frozenset({9})) == [()]
    assert continuations([9, 9, 9], 2, 3, frozenset({9})) == []


@given(st.integers(0, len(models.CHATS) - 1), st.sampled_from(models.SEEDS), models.configs(), st.booleans())
@settings(max_examples=30)
def test_lookup_changes_no_token_and_needs_no_draft(chat: int, seed: int, config: DecodingConfig, ends: bool):
    eos = [models.reference(chat, seed)[7]] if ends else []
    options = {name: getattr(config, name) for name in ("max_new_tokens", "depth", "nodes")}
    looked = DecodingConfig(drafter="prompt-lookup", ngram=2, **options)
    trace = models.decode(models.pair(None, seed, eos or None), models.prompt(chat, seed), looked)
    assert trace.token_ids == models.expected(chat, seed, config.max_new_tokens, eos)
