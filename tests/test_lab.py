"""Experiments: the answer is the target's whatever a draft is shown, and every number can be had another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from support import models

from specllava.core.config import RULES, DecodingConfig
from specllava.core.metrics import summarise
from specllava.engine.decoders import Batch, Reduction
from specllava.engine.engine import Engine, Output
from specllava.findings.ablation import Ablation, DraftScores
from specllava.findings.sweep import SWEEP_VALUES, Sweep
from specllava.lab import Lab
from specllava.lab.ablation import Variant, ablate, most_divergent, with_tree_comparisons
from specllava.lab.sweep import sweep_values
from specllava.pair import Pair
from specllava.prompt.prompt import with_draft_prompt
from specllava.scoring import score_draft, teacher_forced_log_probs

SHORT = DecodingConfig(max_new_tokens=16, depth=4, nodes=8)
QUESTION = "Describe this."
T = TypeVar("T")


def last(found: Iterator[T]) -> T:
    """The finding that an experiment ends with."""
    *_, end = found
    return end


@pytest.fixture(scope="module")
def lab(tiny: Pair) -> Lab:
    return Lab(tiny)


# ------------------------------------------------------------------------------------------------- sweeps


def test_every_rule_is_run_once_and_says_what_the_target_says(lab: Lab):
    seen: list[Sweep] = list(lab.rules(models.picture(0), QUESTION, SHORT))
    done = seen[-1]
    assert [point.value for point in done.points] == list(RULES) and done.current == "entropy"
    assert all(point.sameness.identical for point in done.points)
    assert [len(found.runs) for found in seen] == sorted(len(found.runs) for found in seen)
    assert done.alone is not None and done.alone.token_ids == models.expected(0, 0, 16)
    for point in done.points:
        trace = dict(done.runs)[point.value]
        assert trace.config == replace(SHORT, rule=point.value)
        assert point.summary.tau == pytest.approx((len(trace.token_ids) - 1) / len(trace.steps))
        slow, fast = (summarise([one]) for one in (done.alone, trace))
        assert point.speedup == pytest.approx(slow.decode_seconds / fast.decode_seconds)


@pytest.mark.parametrize("field", list(SWEEP_VALUES))
def test_the_present_setting_is_a_point_on_the_curve(lab: Lab, field: str):
    config = replace(SHORT, entropy_threshold=0.7, max_branches=5, depth=5, nodes=7)
    values = sweep_values(config, field)
    assert getattr(config, field) in values and list(values) == sorted(set(values))
    done = last(lab.sweep(models.picture(0), QUESTION, field, config))
    assert tuple(point.value for point in done.points) == values
    assert all(point.sameness.identical for point in done.points)
    assert all(getattr(trace.config, field) == value for value, trace in done.runs)


def test_a_sweep_that_is_dropped_leaves_no_run_behind(lab: Lab):
    found = lab.rules(models.picture(0), QUESTION, SHORT)
    assert next(found).points == ()
    found.close()


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [(SHORT, "width", "is no knob"), (replace(SHORT, rule="chain"), "entropy_threshold", "does not look at")],
)
def test_a_knob_that_shows_nothing_is_refused(lab: Lab, config: DecodingConfig, field: str, words: str):
    with pytest.raises(ValueError, match=words):
        lab.sweep(models.picture(0), QUESTION, field, config)


# -------------------------------------------------------------------------------------------------- ablations


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_the_draft_sees_changes_no_token(lab: Lab, temperature: float):
    config = replace(SHORT, temperature=temperature, seed=3)
    done = last(lab.image_ablation(models.picture(0), QUESTION, models.picture(5), config))
    assert [side.name for side in done.results] == list(done.names) and len(done.results) == 3
    assert all(same.identical for same in done.sameness)
    assert len({side.scores.probs for side in done.results}) == 3  # and yet the draft saw three things
    if temperature == 0:
        assert done.results[0].trace.token_ids == models.expected(0, 0, 16)
    for side in done.results:
        assert min(side.scores.divergences) >= 0 and max(side.scores.divergences) > 0


def test_of_several_pictures_each_is_replaced_for_the_draft(lab: Lab, tiny: Pair):
    shown = tuple(map(models.picture, range(3)))
    done = last(lab.image_ablation(shown, QUESTION, models.picture(5), SHORT))
    assert all(same.identical for same in done.sameness) and len({side.scores.probs for side in done.results}) == 3
    assert done.results[0].trace.token_ids == tiny.generate(shown, QUESTION, SHORT).token_ids


def test_the_draft_that_is_shown_the_same_picture_is_the_same_draft(tiny: Pair):
    prompt = models.prompt(0)
    variants = [Variant("as it is", tiny, prompt), Variant("shown", tiny, with_draft_prompt(prompt, prompt))]
    one, two = last(ablate(variants, SHORT)).results
    assert one.scores == two.scores
    assert [step.tree for step in one.trace.steps] == [step.tree for step in two.trace.steps]


def test_a_longer_prompt_cannot_be_shown_to_the_draft():
    with pytest.raises(ValueError, match="more than the target's"):
        with_draft_prompt(models.prompt(3), models.prompt(0))


def test_drafts_are_compared_on_one_answer_with_trees_of_the_same_places(tiny: Pair):
    prompt = models.prompt(1)
    variants = [Variant(kind, models.pair(kind), prompt) for kind in models.KINDS]
    found: Ablation = last(ablate(variants, SHORT))
    bad, mixed, perfect = found.results
    assert all(same.identical for same in found.sameness)
    assert max(perfect.scores.divergences) < 1e-9
    assert bad.scores.divergence > mixed.scores.divergence > perfect.scores.divergence
    assert perfect.scores.guesses == perfect.trace.token_ids and perfect.tau > bad.tau
    done = last(with_tree_comparisons(found, variants, SHORT))
    answer = bad.trace.token_ids
    assert done.comparisons and tuple(one.position for one in done.comparisons) == most_divergent(found)
    for comparison in done.comparisons:
        for trace in comparison.traces:
            assert trace.forced_prefix == answer[: comparison.position - 1]
            assert len(trace.steps) == 1 and trace.steps[0].tree.tokens[0] == answer[comparison.position - 1]
        assert comparison.traces[2].steps[0].emitted[0] == answer[comparison.position]
    assert list(with_tree_comparisons(found, variants, replace(SHORT, temperature=0.5))) == [found]


def test_places_are_where_drafts_differ_most_and_not_side_by_side(tiny: Pair):
    variants = [Variant(kind, models.pair(kind), models.prompt(1)) for kind in ("bad", "perfect")]
    found = last(ablate(variants, SHORT))
    one, two = (side.scores.probs for side in found.results)
    places = most_divergent(found)
    spread = [abs(a - b) for a, b in zip(one, two, strict=True)]
    assert spread[places[0]] == max(spread[1:])
    assert all(abs(a - b) >= 4 for a in places for b in places if a != b)


def test_a_reading_by_hand():
    half, sure = math.log(0.5), math.log(0.25)
    draft = torch.tensor([[half, half, -math.inf], [sure, math.log(0.75), -math.inf]], dtype=torch.float64)
    target = torch.tensor([[half, half, -math.inf], [half, half, -math.inf]], dtype=torch.float64)
    found = score_draft(draft, target, (1, 0))
    assert found.probs == pytest.approx((0.5, 0.25))
    assert found.entropies == pytest.approx((math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)))
    assert found.divergences == pytest.approx((0.0, 0.5 * math.log(2) + 0.5 * math.log(2 / 3)))
    assert found.divergence == pytest.approx(sum(found.divergences) / 2) and found.guesses[1] == 1


def test_a_reading_needs_an_entry_per_token():
    with pytest.raises(ValueError, match=r"lengths \(1, 0, 1, 1\)"):
        DraftScores((0.1,), (), (3,), (0.0,))


@pytest.mark.parametrize("number", range(len(models.CHATS)))
def test_expectations_are_those_of_a_plain_forward_pass(tiny: Pair, number: int):
    prompt, answer = models.prompt(number), models.reference(number)[:6]
    inputs = models.plain_inputs(number)
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
    with torch.inference_mode():
        plain = tiny.target(input_ids=ids, pixel_values=inputs.get("pixel_values"), use_cache=False).logits[0]
    wanted = torch.log_softmax(plain[-len(answer) - 1 : -1], dim=-1)
    assert torch.allclose(teacher_forced_log_probs(tiny.target, prompt, answer), wanted, atol=1e-8)


# ------------------------------------------------------------------------------------------------- heartbeats


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass scores that any model makes; a prompt's pass is none of them."""
    made: list[int] = []

    def counted(self: Engine, batch: Batch, reduction: Reduction | None = None) -> Output:
        made.append(len(batch.tokens))
        return forward(self, batch, reduction)

    forward = Engine.forward
    monkeypatch.setattr(Engine, "forward", counted)
    return made


EXPERIMENTS: dict[str, Callable[[Lab], Generator[object]]] = {
    "rules": lambda lab: lab.rules(models.picture(0), QUESTION, SHORT),
    "sweep": lambda lab: lab.sweep(models.picture(0), QUESTION, "nodes", SHORT),
    "image-ablation": lambda lab: lab.image_ablation(models.picture(0), QUESTION, models.picture(5), SHORT),
    "distillation": lambda lab: lab.distillation(models.picture(0), QUESTION, SHORT),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_can_be_stopped_between_any_two_decode_steps(
    name: str, tiny: Pair, passes: list[int], monkeypatch: pytest.MonkeyPatch
):
    """A whole answer was once decoded between two findings, and Stop and the deadline came only then."""
    monkeypatch.setattr(Pair, "undistilled", lambda pair: models.pair("bad"))
    most = SHORT.depth + 1  # a step is a pass per depth of the draft tree and one of the target
    found = EXPERIMENTS[name](Lab(tiny))
    between = []
    for _ in found:
        between.append(len(passes))
        passes.clear()
    assert max(between) <= most and sum(between) > 4 * most


# ------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_compared_is_refused(lab: Lab):
    drawn = DecodingConfig(rule="fixed", temperature=1.0, children="drawn")
    with pytest.raises(ValueError, match="set children to best"):
        lab.rules(models.picture(0), QUESTION, drawn)
    with pytest.raises(ValueError, match="no draft from before distillation"):
        lab.distillation(models.picture(0), QUESTION, SHORT)
    with pytest.raises(ValueError, match="the prompt is empty"):
        lab.image_ablation(models.picture(0), " ", models.picture(1), SHORT)
    nobody = Lab(models.pair(None))
    with pytest.raises(ValueError, match="no draft"):
        last(nobody.image_ablation(models.picture(0), QUESTION, models.picture(1), SHORT))


def test_the_shipped_pair_has_its_earlier_draft_on_the_same_target(shipped):
    pair = shipped("float32")
    before = pair.undistilled()
    assert before.target is pair.target
    assert before.info.draft == "draft-before" and pair.info.draft == "draft"
