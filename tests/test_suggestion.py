"""The suggested tree brings the most expected tokens per second, against every tree there is."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest

from benchmarks.gpu.suggestion import acceptance_by_rank, depth_of, expected, suggest_tree
from specllava.core.growth.shapes import drawn_shape

ROWS = (1, 2, 4, 8, 16, 32, 64)
FLAT = dict.fromkeys(ROWS, 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_no_tree_of_that_size_brings_more_tokens_per_second(seed: int):
    """All trees of up to five nodes, by their parents."""
    source = Random(seed)
    acceptance = acceptance_by_rank(source.choice((0.3, 0.6, 0.9)))
    target = {1: 1.0, 2: 1.0 + source.random(), 4: 2.0 + source.random(), 6: 3.0 + 3 * source.random()}
    level = source.choice((0.0, 0.05, 0.3, 1.0))
    found = suggest_tree(target, level, acceptance)
    rates = []
    for count in (1, 3, 5):
        for parents in product(*(range(node) for node in range(1, count + 1))):
            shape = drawn_shape(parents, count, count)
            rates.append((1 + expected(shape, acceptance)) / (depth_of(shape) * level + target[count + 1]))
    assert found.tau / found.seconds == pytest.approx(max(rates))


def test_dearer_levels_make_trees_shallower_and_dearer_rows_smaller():
    for best in (0.5, 0.8):
        acceptance = acceptance_by_rank(best)
        depths = [suggest_tree(FLAT, level, acceptance).depth for level in (0.001, 0.2, 1.0)]
        assert depths == sorted(depths, reverse=True) and depths[0] > depths[-1]
        sizes = [
            suggest_tree({rows: 1 + slope * rows for rows in ROWS}, 0.05, acceptance).nodes
            for slope in (0.0001, 0.1, 1.0)
        ]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


def test_acceptance_leaves_less_for_every_rank():
    for best in (0.5, 0.6, 0.99):
        shares = acceptance_by_rank(best)
        assert shares[0] == best and sum(shares) < 1
        assert all(first > second for first, second in pairwise(shares))
