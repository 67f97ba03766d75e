"""The experiments of docs/notes/science.md: rounding is what it says, rates are pooled, no answer is ever changed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks import mechanisms, turns
from benchmarks.quantised import SCHEMES, Scheme, quantised, rounded
from benchmarks.shared.guessing import Guessing, alone, guess, rates
from benchmarks.shared.intervals import Panel, interval_figure
from benchmarks.shared.questions import held_out_questions
from specllava.core.config import DecodingConfig
from specllava.models.drafts.fresh_feature_draft import fresh_feature_draft

SHORT = DecodingConfig(max_new_tokens=12, nodes=8, depth=4)


@pytest.mark.parametrize("seed", range(6))
def test_weights_are_rounded_to_the_nearest_value_of_their_groups_grid(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 48, generator=generator)
    weight[seed % 6] = 0.0
    errors = []
    for scheme in (Scheme(8), Scheme(8, 16), Scheme(4, 16), Scheme(3, 16)):
        near = rounded(weight, scheme)
        group = scheme.group or 48
        largest = weight.unflatten(1, (-1, group)).abs().amax(-1, keepdim=True)
        half = largest / (2 ** (scheme.bits - 1) - 1) / 2
        off = (near - weight).unflatten(1, (-1, group)).abs()
        assert bool((off <= half * (1 + 1e-5)).all())
        for values in near.unflatten(1, (-1, group)).flatten(0, 1):
            assert len(values.unique()) <= 2**scheme.bits - 1
        assert torch.allclose(rounded(near, scheme), near, rtol=1e-6, atol=0)  # what is on the grid stays there
        errors.append(float(off.square().sum()))
    assert errors[1] <= errors[0] < errors[2] < errors[3]


def test_groups_must_fill_a_row():
    with pytest.raises(ValueError, match="rows of 48 weights cannot be cut into groups of 32"):
        rounded(torch.ones(2, 48), Scheme(4, 32))


def test_a_quantised_decoder_keeps_tower_projector_and_head_and_answers_for_itself(shipped):
    pair = shipped("float32")
    scheme = SCHEMES["int3"]
    assert scheme is not None
    before = {name: weight.clone() for name, weight in pair.target.state_dict().items()}
    other = replace(pair, target=quantised(pair.target, scheme), costs=pair.costs)
    changed = {
        name for name, weight in other.target.state_dict().items() if not torch.equal(weight, before[name])
    }
    assert all(torch.equal(weight, before[name]) for name, weight in pair.target.state_dict().items())
    layers = pair.target.config.text_config.num_hidden_layers
    assert len(changed) == 7 * layers and all("language_model.layers" in name for name in changed)
    asked = held_out_questions("toy", 2)
    for one in asked:
        prompt = other.prompt(one.image, one.text)
        found = guess(other, prompt, SHORT, alone(other, prompt, SHORT))
        assert found.tokens - 1 == found.emitted >= found.passes and found.accepted <= found.drafted
        assert found.divergence > 0 and found.entropy > 0


def test_a_mechanism_of_the_drafts_own_view_needs_a_draft_that_has_one(monkeypatch, shipped):
    pair = shipped("float32")
    reading = replace(pair, draft=fresh_feature_draft(pair.target))
    monkeypatch.setattr("specllava.pair.Pair.from_preset", lambda *args, **options: reading)
    for mechanism in ("grounding", "view", "merging", "distillation"):
        with pytest.raises(ValueError, match=rf"{mechanism} needs a draft VLM \(--draft\): the draft .* reads"):
            mechanisms.main(mechanisms.MechanismConfig(mechanism=mechanism, decoding=SHORT, prompts=1, preset="smol"))


def test_rates_are_totals_over_totals_with_an_interval_over_clusters():
    one, two = Guessing(10, 9, 3, 12, 6, 5.0, 1.0, 8, 1), Guessing(20, 19, 19, 20, 0, 30.0, 9.0, 4)
    found = rates([[one, two], [two]])
    assert (found["answers"], found["clusters"]) == (3, 2)
    assert found["tau"]["value"] == pytest.approx(47 / 41, abs=1e-5)
    assert found["entropy"]["value"] == pytest.approx(65 / 50, abs=1e-5)
    assert found["right"]["value"] == pytest.approx(1 / 3, abs=1e-5)
    assert found["tau"]["low"] <= found["tau"]["value"] <= found["tau"]["high"]
    assert rates([[one]] * 5)["kl"] == {"value": 0.1, "low": 0.1, "high": 0.1}


def test_the_figure_draws_every_rate_with_its_interval():
    rate = {"value": 2.0, "low": 1.5, "high": 3.0}
    series = {"a": [rate, None, rate], "b": [None, rate, rate]}
    figure = interval_figure([Panel("τ", series), Panel("KL", {"a": [rate] * 3})], ["x", "y", "z"], "across")
    assert [len(trace.x) for trace in figure.data] == [2, 2, 3]
    for trace in figure.data:
        assert set(trace.y) == {2.0} and set(trace.error_y.array) == {1.0} and set(trace.error_y.arrayminus) == {0.5}
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a", "b"]
    assert len({round(x) for x in figure.data[0].x} | {round(x) for x in figure.data[1].x}) == 3


def test_turns_and_mechanisms_are_measured_from_end_to_end(tmp_path, pair, capsys):
    turns.main(turns.TurnsConfig(decoding=replace(SHORT, max_new_tokens=5), dialogues=1, json=tmp_path / "turns.json"))
    rows = json.loads((tmp_path / "turns.json").read_text())["rows"]
    assert [len(rows[lane]) for lane in (turns.ONE, turns.TWO)] == [turns.TURNS] * 2
    same = [one["kl"] == two["kl"] for one, two in zip(rows[turns.ONE], rows[turns.TWO], strict=True)]
    assert same[: turns.CHANGED] == [True] * turns.CHANGED and not any(same[turns.CHANGED :])
    for mechanism in mechanisms.MECHANISMS:
        place = tmp_path / f"{mechanism}.json"
        config = mechanisms.MechanismConfig(
            mechanism=mechanism, decoding=replace(SHORT, max_new_tokens=5), prompts=1, json=place
        )
        mechanisms.main(config)
        found = json.loads(place.read_text())["rows"]
        assert all(row["tau_over_base"]["value"] > 0 for row in found)
        assert all(math.isfinite(row["kl"]["value"]) for row in found)
    assert found[0]["kl"]["value"] > found[-1]["kl"]["value"]  # distillation brought it nearer
    assert "| turn |" in capsys.readouterr().out
