"""Where the mechanisms break (docs/notes/science.md): each figure's arithmetic done anew, no answer ever changed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops

from benchmarks import calibration, confidence, distance, early, mechanisms, perfect
from benchmarks.shared.calibration import error_interval
from benchmarks.shared.guessing import GuessingConfig, alone, guess, speculate
from benchmarks.shared.prices import STATED
from specllava.core.config import DecodingConfig
from specllava.core.metrics import Bin, acceptance_by_rank, calibration_error, reliability
from specllava.models.drafts.draft_classes import own_draft
from specllava.models.drafts.fresh_feature_draft import fresh_feature_draft
from specllava.runtime.scoring import draft_log_probs
from specllava.toyworld.scene_questions import scene_questions

SHORT = DecodingConfig(max_new_tokens=12, nodes=8, depth=4)


def asked(pair):
    question = next(iter(scene_questions("held-out", 1)))
    return pair.prompt(question.image, question.text)


def test_a_view_goes_from_the_pictures_features_to_noise_or_another_pictures(pair):
    own, other = scene_questions("held-out", 2)
    seen, beside = (pair.prompt(one.image, one.text).features for one in (own, other))
    variants = mechanisms.MECHANISMS["view"].variants(pair, SHORT)
    read = {}
    for one in variants:
        prompt = one.prompt(own, other)
        assert torch.equal(prompt.features, seen)  # the target's own view stays
        read[one.series, float(one.place)] = prompt.draft_prompt.features
        assert variants[one.base].series == one.series
        assert variants[one.base].place == "0"
    noise = mechanisms.like(seen)
    assert torch.equal(noise, mechanisms.like(seen))
    for series, end in (("noise", noise), ("another picture", beside)):
        assert torch.equal(read[series, 0.0], seen)
        for share in mechanisms.SHARES:
            torch.testing.assert_close(read[series, share], (1 - share) * seen + share * end)
    torch.testing.assert_close(noise.std(1), seen.std(1), rtol=0.5, atol=0.1)


def test_early_and_later_tokens_are_scored_as_by_the_model_itself(pair):
    prompt = asked(pair)
    own = alone(pair, prompt, SHORT)
    scores = early.scores_of(pair, prompt, own.token_ids)
    ids = torch.cat([prompt.input_ids, torch.tensor([own.token_ids])], dim=1)
    with torch.inference_mode():
        logits = pair.target(input_ids=ids, **prompt.image_inputs).logits[0, prompt.length - 1 : -1].double()
    probs = logits.softmax(-1)
    assert scores["target_entropy"] == pytest.approx((-(probs * probs.log()).sum(-1)).tolist(), abs=1e-4)
    several = {"a": [scores, scores], "b": [{name: [2 * x for x in one] for name, one in scores.items()}] * 2}
    first = early.rows_of(several, slice(3))
    assert first[0]["kl"]["value"] == pytest.approx(sum(scores["kl"][:3]) / 3, abs=1e-5)
    assert first[1]["entropy_over_own"]["value"] == pytest.approx(2)


@pytest.mark.parametrize("kind", ["vlm", "eagle3"])
def test_a_temperature_divides_the_drafts_logits_and_nothing_else(pair, kind):
    prompt = asked(pair)
    answer = alone(pair, prompt, SHORT).token_ids
    draft = pair.draft if kind == "vlm" else fresh_feature_draft(pair.target, "eagle3", guessable=range(200))
    before = {name: weight.clone() for name, weight in draft.state_dict().items()}
    whole = draft_log_probs(pair.target, draft, prompt, answer)
    for temperature in (0.5, 4.0):
        changed = draft_log_probs(pair.target, confidence.tempered(draft, temperature), prompt, answer)
        torch.testing.assert_close(changed, (whole / temperature).log_softmax(-1), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(weight, before[name]) for name, weight in draft.state_dict().items())


def test_a_draft_with_its_targets_head_cannot_be_made_less_sure(pair):
    with pytest.raises(ValueError, match="its target's head"):
        confidence.tempered(fresh_feature_draft(pair.target), 2.0)


def test_the_calibration_error_of_pooled_answers_is_that_of_their_sum():
    one, two = (Bin(4, 1, 0.8), Bin(6, 6, 5.1)), (Bin(1, 0, 0.1), Bin(0, 0, 0.0))
    found = error_interval([one, two])
    assert found["value"] == pytest.approx((abs(1 - 0.9) + abs(6 - 5.1)) / 11, abs=1e-5)
    assert found["value"] == pytest.approx(calibration_error([Bin(5, 1, 0.9), Bin(6, 6, 5.1)]), abs=1e-5)
    assert found["low"] <= found["value"] <= found["high"]
    assert math.isnan(error_interval([(Bin(),)] * 2)["value"])


def test_marks_count_every_tested_guess_once_by_rank_and_once_by_depth(pair):
    prompt = asked(pair)
    config = replace(SHORT, rule="topk", width=3, max_new_tokens=24)
    trace, levels = speculate(pair, prompt, config, alone(pair, prompt, config))
    assert 0 < levels <= config.depth * len(trace.steps)
    marks = calibration.marks([calibration.counted(trace)])
    for by in ("rank", "depth"):
        bins = [0] * calibration.BINS
        for mark in marks:
            bins[mark["bin"]] += mark["tested"] if mark["by"] == by else 0
        assert bins == [one.tested for one in reliability([trace], calibration.BINS)]
    hits, tests = acceptance_by_rank([trace])[0]
    best = [mark for mark in marks if mark["group"] == calibration.RANKS[0]]
    assert sum(mark["tested"] for mark in best) == tests
    assert sum(round(mark["accepted"]["value"] * mark["tested"]) for mark in best) == hits
    assert all(mark["bin"] <= 10 * mark["promised"] <= mark["bin"] + 1 for mark in marks)


def test_a_target_is_a_perfect_draft_of_itself(pair, monkeypatch):
    monkeypatch.setattr(perfect, "DEPTHS", (1, 4))
    prompt = asked(pair)
    itself = replace(pair, draft=own_draft(pair.target))
    config = replace(SHORT, max_new_tokens=14)
    own = alone(pair, prompt, config)
    for name, shape in perfect.shapes(config).items():
        found = guess(itself, prompt, shape, own)
        assert found.divergence == pytest.approx(0, abs=1e-4)
        assert found.agreed == found.tokens
        if name.isdigit():
            assert found.passes == perfect.fewest_passes(found.tokens, shape.depth)
            assert found.levels <= shape.depth * found.passes
            widths = [1] * found.levels
            priced = STATED.step_seconds(widths, found.drafted) + (found.passes - 1) * STATED.verify_seconds(0)
            assert found.cost() == pytest.approx(priced)


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_the_fewest_passes_are_those_of_a_draft_that_is_always_right(depth):
    for tokens in range(1, 40):
        left, passes = tokens - 1, 0
        while left > 0:
            left, passes = left - (depth + 1), passes + 1
        assert perfect.fewest_passes(tokens, depth) == passes


def test_pictures_are_changed_in_one_way_only():
    picture = Image.effect_noise((40, 40), 50).convert("RGB")
    picture.paste((200, 10, 60), (0, 0, 20, 20))
    thrice = distance.recoloured(distance.recoloured(distance.recoloured(picture)))
    assert ImageChops.difference(thrice, picture).getbbox() is None
    assert distance.recoloured(picture).getpixel((0, 0)) == (10, 60, 200)
    assert distance.noisy(0.2)(picture).tobytes() == distance.noisy(0.2)(picture).tobytes()
    assert ImageChops.difference(distance.noisy(0.0)(picture), picture).getbbox() is None


def test_every_command_measures_from_end_to_end(tmp_path, monkeypatch, pair):
    monkeypatch.setattr(confidence, "TEMPERATURES", (0.5, 1.0))
    monkeypatch.setattr(confidence, "THRESHOLDS", (1.0,))
    monkeypatch.setattr(perfect, "DEPTHS", (1, 3))
    kinds = distance.KINDS
    few = {"REQUESTS": ("held-out", "dialogue"), "PICTURES": ("turned",), "KINDS": ("held-out", "dialogue", "turned")}
    for group, names in few.items():
        monkeypatch.setattr(distance, group, {name: kinds[name] for name in names})
    config = replace(SHORT, max_new_tokens=4)

    def rows(module, options):
        place: Path = tmp_path / f"{module.__name__}.json"
        module.main(options(decoding=config, prompts=1, json=place))
        return json.loads(place.read_text())["rows"]

    found = rows(confidence, GuessingConfig)
    assert [len(one) for one in found["rules"].values()] == [2] * 4
    assert len(found["thresholds"]) == 2 * 2
    assert [row["seen"] for row in rows(early, GuessingConfig)["later tokens"]] == list(early.SEEN)
    assert set(rows(calibration, calibration.CalibrationConfig)) == set(calibration.CalibrationConfig().presets)
    shares = rows(perfect, GuessingConfig)[perfect.ITSELF]
    assert [row["tau_of_most"]["value"] for row in shares[:2]] == [1, 1]
    assert list(rows(distance, distance.DistanceConfig)) == ["held-out", "dialogue", "turned"]
