"""One pass over a tree is as good as a pass per branch, and the cache keeps of it what that branch alone had left."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models

from specllava.core.tree import DraftTree
from specllava.runtime.cache import BranchCache
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput

CAPACITY = 96
CHATS = st.integers(0, len(models.CHATS) - 1)
SOME = settings(max_examples=25)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def reader(chat: int, seed: int = 0, capacity: int = CAPACITY) -> Engine:
    """The target after reading a prompt."""
    engine = Engine(models.target(seed), capacity)
    prompt = models.prompt(chat, seed)
    engine.prefill(prompt.input_ids, prompt.features)
    return engine


def score(engine: Engine, tree: DraftTree) -> torch.Tensor:
    """Logits of all nodes of a tree in one pass."""
    base = engine.cache.length
    context = torch.ones(len(tree), base, dtype=torch.bool).numpy()
    visible = torch.cat([torch.from_numpy(context), torch.from_numpy(tree.ancestor_mask())], dim=1).numpy()
    return engine.forward(PassInput(tree.tokens, visible, [base + depth for depth in tree.depths()])).logits


def one_by_one(engine: Engine, tokens: list[int]) -> torch.Tensor:
    """Logits after each token, fed alone."""
    return torch.cat([engine.forward(PassInput([token])).logits for token in tokens])


def contents(cache: BranchCache) -> list[torch.Tensor]:
    return [part[:, :, : cache.length] for layer in cache.layers for part in (layer.keys, layer.values)]


def pointers(cache: BranchCache) -> list[int]:
    return [part.data_ptr() for layer in cache.layers for part in (layer.keys, layer.values)]


@given(seed=st.integers(0, 10_000), chat=CHATS, guesses=st.integers(1, 12))
@SOME
def test_a_tree_pass_scores_every_node_as_its_branch_alone(seed: int, chat: int, guesses: int):
    tree = models.random_tree(seed, guesses)
    engine = reader(chat)
    base = engine.cache.length
    logits = score(engine, tree)
    for node in range(len(tree)):
        engine.cache.keep(base, [])
        alone = one_by_one(engine, [tree.tokens[step] for step in tree.path(node)])
        torch.testing.assert_close(logits[node], alone[-1], rtol=0, atol=1e-9)


@given(seed=st.integers(0, 10_000), chat=CHATS, data=st.data())
@SOME
def test_a_kept_branch_leaves_what_its_tokens_alone_had_left(seed: int, chat: int, data: st.DataObject):
    """Over several steps: each tree stands on what the step before has kept."""
    engine, alone = reader(chat), reader(chat)
    for number in range(3):
        tree = models.random_tree(seed + number)
        path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
        base = engine.cache.length
        score(engine, tree)
        engine.cache.keep(base, path)
        one_by_one(alone, [tree.tokens[node] for node in path])
    assert engine.cache.length == alone.cache.length
    for kept, wanted in zip(contents(engine.cache), contents(alone.cache), strict=True):
        torch.testing.assert_close(kept, wanted, rtol=0, atol=1e-10)


@given(seed=st.integers(0, 10_000), data=st.data())
@SOME
def test_storage_never_moves(seed: int, data: st.DataObject):
    engine = reader(0)
    before = pointers(engine.cache)
    for number in range(3):
        tree = models.random_tree(seed + number)
        base = engine.cache.length
        score(engine, tree)
        engine.cache.keep(base, tree.path(data.draw(st.integers(0, len(tree) - 1))))
        assert pointers(engine.cache) == before


def test_several_tokens_at_once_are_read_like_one_after_the_other():
    """The draft feeds the last accepted leaf together with the next root."""
    tokens = [5, 6, 7, 8]
    together, apart = reader(0), reader(0)
    torch.testing.assert_close(together.forward(PassInput(tokens)).logits, one_by_one(apart, tokens), rtol=0, atol=1e-9)
    last = together.forward(PassInput([9, 10], last=1)).logits
    torch.testing.assert_close(last, one_by_one(apart, [9, 10])[-1:], rtol=0, atol=1e-9)


def test_a_cache_that_is_full_says_how_many_columns_are_needed():
    length = models.prompt(0).length
    engine = reader(0, capacity=length + 2)
    engine.forward(PassInput([5, 6]))
    with pytest.raises(ValueError, match=f"the cache holds {length + 2} columns, {length + 3} are needed"):
        engine.forward(PassInput([7]))


def test_columns_that_were_never_written_cannot_be_kept():
    engine = reader(0)
    base = engine.cache.length
    engine.forward(PassInput([5, 6]))
    with pytest.raises(ValueError, match=f"column {base + 2} was never written: the cache holds {base + 2}"):
        engine.cache.keep(base, [0, 2])
    engine.cache.keep(base, [0])
    with pytest.raises(ValueError, match="was never written"):
        engine.cache.keep(base, [0, 1])


def test_the_cache_tells_transformers_what_it_holds():
    engine = reader(0)
    length = models.prompt(0).length
    cache = engine.cache
    assert (cache.length, cache.get_seq_length(), cache.get_mask_sizes(3, 0)) == (length, length, (length + 3, 0))
    assert cache.layers[0].get_max_length() == CAPACITY
