"""Operators of the visual compressor against plain computations, and its options."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specllava.models.drafts.compressor import Compressor, Operator, build_operator, segments_of
from specllava.models.drafts.eagle import FeatureDraftConfig
from specllava.models.options import KINDS, CompressorConfig, OperatorName

WIDTH, HEADS = 24, 3


def operator(name: OperatorName, **options: Any) -> Operator:
    """An operator with random weights, in float64, as at inference."""
    built = build_operator(name, CompressorConfig(**options), WIDTH, HEADS).double().eval()
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in built.parameters():
            weight.copy_(torch.randn(weight.shape, generator=source, dtype=weight.dtype))
    return built


def entries(slots: int, seed: int = 0) -> Tensor:
    return torch.randn(slots, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -------------------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("prune", {64: 4, 576: 29, 2880: 144, 1: 1}),
        ("pool", {64: 4, 576: 29, 2880: 144, 1: 1}),
        ("merge", {64: 4, 576: 29, 2880: 144, 1: 1}),
        ("conv", {64: 22, 576: 192, 2880: 960, 1: 1}),
        ("resampler", {64: 2, 576: 2, 2880: 2, 1: 1}),
        ("text", {64: 0, 576: 0, 2880: 0, 1: 0}),
    ],
)
def test_an_operator_keeps_as_many_as_its_ratio_says(name: OperatorName, kept: dict[int, int]):
    """The paper's ratios, for a toy picture, LLaVA's, LLaVA-NeXT's, and one that cannot become shorter."""
    built = operator(name)
    for slots, count in kept.items():
        assert built.kept(slots) == count
        made = built(entries(slots))
        assert made.shape == (count, WIDTH)
        if count == slots:
            assert torch.equal(made, entries(slots))


SLOTS = st.integers(2, 90)
RATIO = st.integers(2, 20)


@given(SLOTS, RATIO)
def test_pruning_spaces_evenly_and_at_random_in_training(slots: int, ratio: int):
    given_, built = entries(slots), operator("prune", prune_ratio=ratio)
    rows = [int((given_ == one).all(1).nonzero()) for one in built(given_)]
    assert len(rows) == -(-slots // ratio)
    gaps = {after - before for before, after in pairwise(rows)}
    assert max(gaps, default=0) - min(gaps, default=0) <= 1
    built.train()
    drawn = [[int((given_ == one).all(1).nonzero()) for one in built(given_)] for _ in range(2)]
    assert all(one == sorted(set(one)) and len(one) == len(rows) for one in drawn)


@given(SLOTS, RATIO)
def test_pooling_averages_windows_that_cover_all(slots: int, ratio: int):
    given_, built = entries(slots), operator("pool", pool_ratio=ratio)
    count = -(-slots // ratio)
    bounds = [(place * slots // count, -(-(place + 1) * slots // count)) for place in range(count)]
    torch.testing.assert_close(built(given_), torch.stack([given_[begin:end].mean(0) for begin, end in bounds]))


def merged_by_hand(given_: Tensor, count: int) -> list[list[int]]:
    """Slots that each merged entry is the mean of, found pair by pair."""
    groups = [[slot] for slot in range(len(given_))]
    while len(groups) > count:
        means = [given_[group].mean(0) for group in groups]
        likest = []
        for even in range(0, len(groups), 2):
            scores = [float(F.cosine_similarity(means[even], mean, dim=0)) for mean in means[1::2]]
            best = max(range(len(scores)), key=scores.__getitem__)
            likest.append((scores[best], even, 2 * best + 1))
        likest.sort(key=lambda match: -match[0])
        gone = likest[: min(len(groups) - count, len(groups) // 2)]
        for _, even, odd in gone:
            groups[odd] = groups[odd] + groups[even]
        groups = [group for place, group in enumerate(groups) if place not in {even for _, even, _ in gone}]
    return groups


@given(SLOTS, RATIO)
def test_merging_makes_means_of_the_likest_slots_and_loses_none(slots: int, ratio: int):
    given_, built = entries(slots), operator("merge", merge_ratio=ratio)
    groups = merged_by_hand(given_, -(-slots // ratio))
    assert sorted(slot for group in groups for slot in group) == [*range(slots)]
    made = built(given_)
    torch.testing.assert_close(made, torch.stack([given_[group].mean(0) for group in groups]))
    sizes = torch.tensor([len(group) for group in groups], dtype=torch.float64)
    torch.testing.assert_close((made * sizes[:, None]).sum(0), given_.sum(0))
    torch.testing.assert_close(built(3 * given_), 3 * made)  # likeness has no length
    assert torch.equal(built(given_), made)


@given(st.integers(2, 12), st.integers(0, 50))
def test_merging_finds_slots_that_are_equal_and_keeps_their_order(pairs: int, seed: int):
    different = entries(pairs, seed)
    twice = different.repeat_interleave(2, 0)
    torch.testing.assert_close(operator("merge", merge_ratio=2)(twice), different)
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))
    shuffled = different[order].repeat_interleave(2, 0)
    torch.testing.assert_close(operator("merge", merge_ratio=2)(shuffled), different[order])


@given(SLOTS, RATIO)
def test_the_convolution_is_a_strided_one(slots: int, ratio: int):
    given_, built = entries(slots), operator("conv", conv_ratio=ratio)
    weight = built.weight.view(WIDTH, ratio, WIDTH).transpose(1, 2)
    filled = F.pad(given_.t()[None], (0, -slots % ratio), mode="replicate") if slots % ratio else given_.t()[None]
    plain = F.conv1d(filled, weight, built.bias, stride=ratio)[0].t()
    torch.testing.assert_close(built(given_), given_ if len(plain) == slots else plain)


def test_the_convolution_begins_as_an_average():
    built, given_ = build_operator("conv", CompressorConfig(), WIDTH, HEADS).double(), entries(66)
    torch.testing.assert_close(built(given_), given_.view(22, 3, WIDTH).mean(1))


@given(st.integers(3, 90))
def test_the_resampler_is_one_attention_head_by_head(slots: int):
    built, given_ = operator("resampler"), entries(slots)
    attention, size = built.attention, WIDTH // HEADS
    seen = torch.zeros(2, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        here = slice(head * size, (head + 1) * size)
        keys, values = given_ @ attention.k_proj.weight[here].t(), given_ @ attention.v_proj.weight[here].t()
        seen[:, here] = (attention.q[:, head] @ keys.t() / size**0.5).softmax(-1) @ values
    torch.testing.assert_close(built(given_), seen @ attention.o_proj.weight.t())


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_segments_cover_a_text_and_number_its_runs(slots: list[bool]):
    found = segments_of(torch.tensor(slots))
    assert [place for begin, end, _ in found for place in range(begin, end)] == list(range(len(slots)))
    assert [run > 0 for begin, end, run in found for _ in range(begin, end)] == slots
    runs = [run for _, _, run in found if run]
    assert runs == list(range(1, len(runs) + 1))


# ------------------------------------------------------------------------------------------------- the options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kind": "squeeze"}, "unknown compressor 'squeeze'"),
        ({"pool_ratio": 1}, "pool_ratio is 1"),
        ({"queries": 0}, "0 queries"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"branches": ["pool"]}, "two or more"),
        ({"branches": ["pool", "pool"]}, "two or more"),
        ({"branches": ["pool", "gate"]}, "no operator is called: gate"),
        ({"ratio": 3}, "no option ratio"),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(options: dict[str, Any], told: str):
    with pytest.raises(ValueError, match=told) as caught:
        CompressorConfig.of(options)
    assert "\n" not in str(caught.value)


def test_options_are_json_and_read_again_are_equal():
    for kind in KINDS:
        config = CompressorConfig(kind, branches=("pool", "text"))
        assert CompressorConfig.of(json.loads(json.dumps(config.settings()))) == config
        assert CompressorConfig.of({**config.settings(), "weighted_ratio": 3}) == config, "an option that is gone"


def test_a_format_without_fusion_takes_no_compressor():
    with pytest.raises(ValueError, match="format vispec takes no compressor"):
        FeatureDraftConfig(format="vispec", compressor={"kind": "pool"})


def test_a_gate_needs_states():
    with pytest.raises(ValueError, match="reads none"):
        Compressor(CompressorConfig("gate"), WIDTH, HEADS, None)
