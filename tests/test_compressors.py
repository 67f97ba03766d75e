"""Visual compressors against plain computations; drafts with one keep positions, and their answers the target's.

Positions of a feature draft keep the numbering of the whole text; a draft VLM reads a prompt with fewer slots.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.cases import complaint
from support.models import configs, decode, expected
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.engine.decoders import entry_labels, prompt_entries
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.compressor import Compressor, Operator, add_compressor, build_operator
from specllava.models.drafts.eagle import DraftInputs, FeatureDraft, FeatureDraftConfig, fresh_feature_draft
from specllava.models.drafts.eagle_checkpoint import load_feature_draft
from specllava.models.options import KINDS, CompressorConfig, CompressorKind, OperatorName
from specllava.prompt import Label, compressed_slots, merge_features

WIDTH, HEADS = 24, 3
SLOTS, RATIO = st.integers(2, 90), st.integers(2, 20)


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
@settings(max_examples=40)
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


@given(SLOTS, RATIO)
def test_the_convolution_is_a_strided_one(slots: int, ratio: int):
    """It begins as an average."""
    given_, built = entries(slots), operator("conv", conv_ratio=ratio)
    weight = built.weight.view(WIDTH, ratio, WIDTH).transpose(1, 2)
    filled = F.pad(given_.t()[None], (0, -slots % ratio), mode="replicate") if slots % ratio else given_.t()[None]
    plain = F.conv1d(filled, weight, built.bias, stride=ratio)[0].t()
    torch.testing.assert_close(built(given_), given_ if len(plain) == slots else plain)
    fresh = build_operator("conv", CompressorConfig(), WIDTH, HEADS).double()
    torch.testing.assert_close(fresh(entries(66)), entries(66).view(22, 3, WIDTH).mean(1))


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


def test_options_out_of_bounds_are_refused_by_name():
    for options, words in (
        ({"kind": "squeeze"}, "unknown compressor 'squeeze'"),
        ({"pool_ratio": 1}, "pool_ratio is 1"),
        ({"queries": 0}, "0 queries"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"branches": ["pool"]}, "two or more"),
        ({"branches": ["pool", "pool"]}, "two or more"),
        ({"branches": ["pool", "gate"]}, "no operator is called: gate"),
        ({"ratio": 3}, "no option ratio"),
    ):
        assert words in complaint(lambda options=options: CompressorConfig.of(options))
    line = complaint(lambda: FeatureDraftConfig(format="vispec", compressor={"kind": "pool"}))
    assert "format vispec takes no compressor" in line
    assert "reads none" in complaint(lambda: Compressor(CompressorConfig("gate"), WIDTH, HEADS, None))


SMALL: dict[str, Any] = {"prune_ratio": 2, "pool_ratio": 2, "conv_ratio": 2, "queries": 1}
KEPT: dict[OperatorName, int] = {"prune": 2, "pool": 2, "conv": 2, "resampler": 1, "text": 0}  # of 4 slots


@cache
def eagle(kind: CompressorKind | None, seed: int = 0, **options: Any) -> FeatureDraft:
    """A random EagleVLM for the tiny target, in float64, with pictures of 4 slots compressed to 0, 1, 2 or all."""
    draft = fresh_feature_draft(models.target(seed), "eagle", seed=seed)
    if kind is not None:
        add_compressor(draft, CompressorConfig(kind, **SMALL, **options), seed)
    source = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.dim() > 1:
                weight.copy_(0.25 * torch.randn(weight.shape, generator=source, dtype=weight.dtype))
    return draft.double().eval()


@cache
@torch.inference_mode()
def states_of(number: int, seed: int = 0) -> Tensor:
    """The target's last states of a prompt, without a cache."""
    prompt, target = models.prompt(number, seed), models.target(seed)
    embeds = merge_features(target, prompt.input_ids, prompt.features)
    states: Tensor = target.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]
    return states


@torch.inference_mode()
def entries_of(draft: FeatureDraft, number: int, seed: int = 0) -> DraftInputs:
    return prompt_entries(draft, models.target(seed), models.prompt(number, seed), states_of(number, seed))[0]


@pytest.mark.parametrize("number", [0, 2, 3])
@pytest.mark.parametrize("kind", KEPT)
@torch.inference_mode()
def test_a_compressed_picture_ends_where_it_ended_and_text_stays(kind: OperatorName, number: int):
    """Prune and pool choose before the fusion of embedding and state, which is linear; the others work behind it."""
    prompt, draft = models.prompt(number), eagle(kind)
    slot = prompt.input_ids[0, 1:] == models.target().config.image_token_id
    slots, text = slot.nonzero()[:, 0].tolist(), (~slot).nonzero()[:, 0].tolist()
    kept = KEPT[kind] if slots else 0
    made = entries_of(draft, number)
    places = {True: [], False: []}
    for place, source in zip(made.positions, made.sources, strict=True):
        places[source >= 0].append(place)
    assert places == {True: text, False: slots[len(slots) - kept :]}
    embeds = merge_features(models.target(), prompt.input_ids, prompt.features)[0, 1:]
    fused = F.linear(torch.cat([embeds, states_of(number)[:-1]], dim=-1), draft.fc.weight, draft.fc.bias)
    rows = torch.tensor([source >= 0 for source in made.sources])
    torch.testing.assert_close(made.inputs[rows], fused[text])
    if slots:
        torch.testing.assert_close(made.inputs[~rows], draft.compressor.operator(kind)(fused[slot]))


def test_the_gate_chooses_one_operator_by_the_question():
    """By the target's state of the prompt's last token; nothing else of the gate's operators runs."""
    seen = set()
    for seed in range(6):
        draft = eagle("gate", 0, temperature=0.5 + seed)  # equal but for its gate
        assert draft.compressor is not None and draft.compressor.gate is not None
        torch.nn.init.normal_(draft.compressor.gate.weight, generator=torch.Generator().manual_seed(seed))
        for number in (0, 1, 2):
            scores = draft.compressor.gate(states_of(number)[-1].clone())
            wanted = draft.compressor.names[int(scores.argmax())]
            ran = []
            hooks = [
                one.register_forward_pre_hook(lambda _, __, ran=ran, name=name: ran.append(name))
                for name, one in draft.compressor.operators.items()
            ]
            made = entries_of(draft, number)
            for hook in hooks:
                hook.remove()
            assert (made.choice, ran, made.bias) == (wanted, [wanted], None)
            assert sum(source < 0 for source in made.sources) == KEPT[wanted]
            seen.add(wanted)
    assert len(seen) > 2


@torch.inference_mode()
def test_in_training_all_operators_of_a_gate_weigh_in():
    """Texts count in full, entries of a picture by their operator's weight; text-only has the rest."""
    draft, prompt = eagle("gate", 1).train(), models.prompt(0, 1)
    try:
        embeds = merge_features(models.target(1), prompt.input_ids, prompt.features)[0]
        states = states_of(0, 1)[:-1]
        made = draft.entries(prompt.input_ids[0, 1:], embeds[1:], states, states[-1])
    finally:
        draft.eval()
    text = torch.tensor([source >= 0 for source in made.sources])
    assert (made.bias[text] == 0).all() and int((~text).sum()) == sum(KEPT[name] for name in draft.compressor.names)
    weights = {float(one) for one in made.bias[~text].exp().detach()}
    assert len(weights) == 4 and sum(weights) < 1.0


@given(st.integers(0, len(models.CHATS) - 1), st.sampled_from(models.SEEDS), st.sampled_from(KINDS), configs())
@settings(max_examples=14)
def test_answers_are_the_targets(number: int, seed: int, kind: CompressorKind, config: DecodingConfig):
    pair = replace(models.pair(None, seed), draft=eagle(kind, seed))
    assert decode(pair, models.prompt(number, seed), config).token_ids == expected(number, seed, config.max_new_tokens)


def test_columns_behind_a_dropped_picture_depend_on_it():
    """Without a column of its own, a picture is part of what the next one stands for, and so is the gate's choice."""
    words, picture = [1, 5, 6, 7], ["one"] * 3

    def labels(positions: Sequence[int], contents: Sequence[Label], choice: str | None = None) -> list[Label]:
        return entry_labels(DraftInputs(torch.zeros(0, 1), tuple(positions), (), choice=choice), contents)

    assert labels((0, 1, 2), words) == ["1 x 1 1 x 5", 6, 7]
    dropped = [1, 5, *picture, 6, 7]
    assert labels((0, 4, 5), dropped, "text") == ["1 x 1 1 x 5", "3 x one 1 x 6 text", 7]
    assert labels((0, 4, 5), [1, 5, *["two"] * 3, 6, 7])[1] == "3 x two 1 x 6"
    assert labels((0, 2, 3, 4, 5), dropped, "pool") == ["1 x 1 1 x 5", "2 x one pool", "1 x one pool", 6, 7]
    assert labels((0, 3, 4), [1, 5, None, None, 6, 7])[1] is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_saved_and_read_again_is_equal(kind: CompressorKind, tmp_path: Path):
    draft, target = eagle(kind), models.target()
    draft.save_pretrained(tmp_path)
    again = load_feature_draft(Checkpoint.at(tmp_path), target)
    assert again.config.compressor == draft.config.compressor
    one, other = entries_of(draft, 0), entries_of(again, 0)
    assert (one.positions, one.choice) == (other.positions, other.choice)
    saved, read = draft.state_dict(), again.state_dict()
    assert saved.keys() == read.keys()
    assert all(torch.equal(saved[name], read[name]) for name in saved)
    torch.testing.assert_close(one.inputs, other.inputs, rtol=0, atol=1e-12)  # bits may depend on addresses


@pytest.mark.parametrize("kind", KEPT)
@torch.inference_mode()
def test_a_draft_vlm_reads_the_first_slots_of_each_picture_and_the_target_all(kind: OperatorName):
    draft = copy.deepcopy(models.draft("mixed"))
    add_compressor(draft, CompressorConfig(kind, **SMALL))
    asked = replace(models.pair("mixed"), draft=draft.eval())
    parts = [{"type": "image", "image": models.picture(one)} for one in (0, 1)]
    prompt = asked.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": "Compare."}]}])
    marker, own = asked.target.config.image_token_id, prompt.draft_prompt
    kept = compressed_slots(asked.draft, prompt.input_ids, prompt.features)[0]
    slots = prompt.input_ids[0] == marker
    assert kept[~slots].all()
    assert kept[slots].tolist() == [place < KEPT[kind] for place in range(4)] * 2
    assert torch.equal(own.input_ids[0], prompt.input_ids[0, kept])
    projected = asked.draft.model.multi_modal_projector(prompt.features)
    merged = merge_features(asked.draft, own.input_ids, prompt.features)[0]
    wanted = torch.cat([asked.draft.compressor.operator(kind)(one) for one in projected])
    torch.testing.assert_close(merged[own.input_ids[0] == marker], wanted)


