"""Sizes of drafts, other targets, and a drafter for each question: each figure's arithmetic done anew."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
import torch

from benchmarks import choice, sizes, transfer
from benchmarks.choice import FIXED, PERFECT, TRIED, TRIED_DRAFTS, Part
from benchmarks.distance import KINDS, asked
from benchmarks.shared import draft_training
from benchmarks.shared.draft_training import DraftShape
from benchmarks.shared.guessing import DifferError, Guessing, guess
from specllava.core.config import DecodingConfig
from specllava.distill.config import LoopConfig
from specllava.toyworld import train
from specllava.toyworld.corpus import TALKING, content_ids
from specllava.toyworld.packing import PackedBatches
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene import sample_scene

SHORT = DecodingConfig(max_new_tokens=12, nodes=8, depth=4)


def test_drafts_have_the_sizes_that_their_names_say(pair):
    recipe = ToyRecipe()
    for name, shape in sizes.SHAPES.items():
        hidden, mlp = shape.hidden, 8 * shape.hidden // 3 // 32 * 32
        layer = 4 * hidden**2 + 3 * hidden * mlp + 2 * hidden
        projector = (recipe.vision_hidden + 1) * hidden + (hidden + 1) * hidden
        expected = recipe.vocabulary * hidden + projector + shape.layers * layer + hidden
        with torch.device("meta"):
            draft = shape.build(pair.processor, recipe, 0)
        assert sum(weight.numel() for weight in draft.parameters()) == expected
        assert sizes.weights(draft) == recipe.vocabulary * hidden + shape.layers * layer
        assert name == f"{expected / 1e6:.1f} M"


def test_speeds_are_tokens_over_what_passes_cost_at_each_price(pair):
    """The target takes 4 s over a token and 6 over 21, the draft 1: a level costs a quarter, a guess a fortieth."""
    one = Guessing(30, 29, 5, 40, 24, 1.0, 1.0, 25, levels=20)
    passes = [{1: [4.0, 4.0], 21: [6.0, 6.0]}, {1: [1.0, 1.0]}]
    gpu = sizes.GpuCosts(10.0, 12.0, 0.5)
    seconds = {"a": [sizes.Timed(2.0, 5.0), sizes.Timed(3.0, 5.0)]}
    row = sizes.rows_of({"a": pair}, passes, {"a": [one, one]}, seconds, gpu)["a"]
    layers = [model.config.text_config.num_hidden_layers for model in (pair.draft, pair.target)]
    expected = {
        "level": 1 / 4, "clock": 10 / 5, "here": 29 / (5 + 20 / 4 + 40 / 40),
        "typed": 29 / (5 + 20 * 0.05 * layers[0] + 40 * 0.01), "by_layers": 29 / (5 + 20 * layers[0] / layers[1]),
        "by_weights": 29 / (5 + 20 * sizes.weights(pair.draft) / sizes.weights(pair.target)),
    }  # fmt: skip
    assert row["weights"] == sizes.weights(pair.draft)
    for name, value in expected.items():
        assert row[name]["value"] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("costs", [(0.0, 4.0), (4.0, 3.0), (4.0, 4.0, -1.0)])
def test_costs_that_no_gpu_has_are_refused(costs):
    with pytest.raises(ValueError, match="give milliseconds above 0"):
        sizes.GpuCosts(*costs)


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (sizes.SizesConfig, {"run": Path("run")}, "--run and --preset smol go together"),
        (sizes.SizesConfig, {"preset": "smol"}, "--run and --preset smol go together"),
        (transfer.TransferConfig, {"other": Path("run")}, "--other run is compared with a run: give --run as well"),
        (choice.ChoiceConfig, {"trial": 0}, "--trial 0: a drafter is judged by at least one step"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_before_anything_is_trained(config, options, words):
    with pytest.raises(ValueError, match=words):
        config(**options)


def test_a_size_learns_once_and_is_measured(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(draft_training, "bfloat16_is_fast", lambda: False)
    monkeypatch.setattr(sizes, "SHAPES", {"a": DraftShape(1, 32)})
    loop = LoopConfig(1, 2e-3, warmup=1)
    config = sizes.SizesConfig(
        work=tmp_path, training=loop, batch=1, decoding=replace(SHORT, max_new_tokens=4), prompts=1, repeats=1,
        json=tmp_path / "found.json",
    )  # fmt: skip
    sizes.main(config)
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert list(rows) == ["a", sizes.SHIPPED]
    assert rows["a"]["tau"]["value"] >= 1 and rows["a"]["level"]["value"] > 0
    monkeypatch.setattr(draft_training, "fit", lambda *_: pytest.fail("a draft that is there learnt again"))
    again = sizes.train(config, pair)
    before = torch.load(tmp_path / "checkpoints" / "1x32" / "last.pt", weights_only=True)["parts"][0]
    for name in ("model.multi_modal_projector.linear_1.weight", "model.language_model.embed_tokens.weight"):
        assert torch.equal(again["a"].draft.state_dict()[name], before[name])


def test_other_words_replace_words_and_keep_those_that_the_picture_gives(pair):
    keep = {pair.processor.tokenizer.decode(one).strip() for one in content_ids(pair.processor.tokenizer)}
    replaced = 0
    for number in range(60):
        scene = sample_scene(number)
        for talk in TALKING:
            plain, other = talk(scene, Random(number)), transfer.reworded(talk, scene, Random(number))
            assert [turn.question for turn in plain] == [turn.question for turn in other]
            for old, new in zip(plain, other, strict=True):
                before, after = (re.findall(r"\w+", turn.answer) for turn in (old, new))
                assert [word for word in before if word in keep] == [word for word in after if word in keep]
                assert not any(re.search(rf"\b{word}\b", new.answer) for word in transfer.WORDS)
                replaced += old.answer != new.answer
    assert replaced > 100


def test_a_target_of_another_seed_sees_through_the_shipped_tower_and_ends_the_recipe(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "bfloat16_is_fast", lambda: False)
    loop = LoopConfig(1, 1e-3, warmup=1)
    small = partial(
        ToyRecipe, align=loop, align_batch=1, target_batch=1, aligned_layers=1, gathering_layers=1, target_layers=2,
        target_hidden=64,
    )  # fmt: skip
    monkeypatch.setattr(transfer, "ToyRecipe", small)
    read = Mock(side_effect=PackedBatches)
    monkeypatch.setattr(train, "PackedBatches", read)
    configs = [transfer.TransferConfig(work=tmp_path, seed=seed, seeded=loop) for seed in (1, 2)]
    targets = [draft_training.load_target(transfer.seeded_target(config, pair)) for config in configs]
    firsts = [call.args[-1] for call in read.call_args_list]
    assert firsts == [seed * train.SEED_STRIDE + first for seed in (1, 2) for first in (0, train.TALKING_START)]
    ours = pair.target.model.vision_tower.state_dict()
    for target in targets:
        assert all(torch.equal(ours[name], one) for name, one in target.model.vision_tower.state_dict().items())
    one, other = (target.model.language_model.layers[0].mlp.up_proj.weight for target in targets)
    assert (one - other).abs().max() > 0.01
    stages = [json.loads(line)["stage"] for line in (tmp_path / "seed-1" / "log.jsonl").read_text().splitlines()]
    assert stages == ["aligned target", "target"]
    monkeypatch.setattr(train, "fit", lambda *_: pytest.fail("a target that is there learnt again"))
    assert transfer.seeded_target(configs[0], pair).exists()


def test_a_choice_goes_on_where_its_first_steps_ended_and_changes_no_answer(pair):
    config = choice.ChoiceConfig(replace(SHORT, max_new_tokens=24))
    loaded = choice.load_drafters(config)
    drafters = {name: replace(loaded[name], pair=pair) for name in ("draft VLM", "prompt lookup")}
    for number, kind in enumerate(("held-out", "question")):
        prompt, own = asked(pair, KINDS[kind], number, config.decoding)
        first = own.token_ids[:1]
        whole = {name: choice.steps(one, prompt, config.decoding, first) for name, one in drafters.items()}
        counted = guess(pair, prompt, config.decoding, own)
        assert whole["draft VLM"].cost == pytest.approx(counted.cost())
        tried = choice.choose(drafters, prompt, config, first)
        assert {first + one.emitted for one in (*whole.values(), tried)} == {own.token_ids}
        begun = choice.steps(drafters["draft VLM"], prompt, config.decoding, first, 1)
        rest = choice.steps(drafters["draft VLM"], prompt, config.decoding, first + begun.emitted)
        assert (begun + rest).emitted == whole["draft VLM"].emitted and (begun + rest).ended
        assert (begun + rest).cost == pytest.approx(counted.cost())
    with pytest.raises(DifferError, match="changed an answer"):
        choice.steps(drafters["draft VLM"], prompt, config.decoding, (first[0] + 1,))


def test_the_perfect_choice_is_the_cheapest_drafter_of_each_question():
    costs = ((4.0, 2.0, 8.0, 5.0, 3.0), (3.0, 6.0, 12.0, 4.0, 4.0))  # of fixed drafters, then of both simple choices
    names = (*FIXED, TRIED, TRIED_DRAFTS)
    answers = [{name: Part((7,) * 12, cost, True) for name, cost in zip(names, each, strict=True)} for each in costs]
    row = choice.row_of([[one] for one in answers])
    assert row["best"] == "draft VLM" and row["draft VLM"]["value"] == pytest.approx(24 / 7, abs=1e-5)
    assert row[PERFECT]["value"] == pytest.approx(24 / (2 + 3), abs=1e-5)
    assert row[f"{PERFECT}, over best fixed"]["value"] == pytest.approx(7 / 5, abs=1e-5)
    assert row[f"{TRIED}, over best fixed"]["value"] == pytest.approx(7 / 9, abs=1e-5)
    assert row[f"{TRIED_DRAFTS}, over best fixed"]["value"] == pytest.approx(1)
    both = choice.row_of([answers])
    assert both["answers"] == 2 and both[PERFECT]["value"] == row[PERFECT]["value"]
    assert choice.cheapest({"a": answers})["a"] == {"draft VLM": 1, "EagleVLM": 1, "prompt lookup": 0}
