"""Variants of a setting: every one says what the target says; scores of drafts by hand and by transformers."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import models

from specllava.config import RULES, SWEEP_VALUES, DecodingConfig
from specllava.engine.decoders import Batch, Reduction
from specllava.engine.engine import Engine, Output
from specllava.pair import Pair
from specllava.prompt import with_draft_prompt
from specllava.scoring import score_draft, teacher_forced_log_probs
from specllava.trace import TARGET_ONLY
from specllava.variants import LOOKUP, Variant, draft_variants, race_variants, rule_variants, sweep_variants

SHORT = DecodingConfig(max_new_tokens=16, depth=4, nodes=8)
QUESTION = "Describe this."


def finished(race: Generator[None, None, Any]) -> Any:
    """What a race of variants returns."""
    while True:
        try:
            next(race)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_rule_is_run_once_and_says_what_the_target_says(tiny: Pair, temperature: float):
    config = replace(SHORT, temperature=temperature, seed=3)
    traces = finished(race_variants(rule_variants(tiny, config), models.picture(0), QUESTION))
    assert list(traces) == [TARGET_ONLY, *RULES]
    assert {trace.token_ids for trace in traces.values()} == {traces[TARGET_ONLY].token_ids}
    assert all(traces[rule].config == replace(config, rule=rule) for rule in RULES)
    if not temperature:
        assert traces[TARGET_ONLY].token_ids == models.expected(0, 0, 16)


@pytest.mark.parametrize("option", list(SWEEP_VALUES))
def test_the_present_setting_is_a_point_on_the_curve(tiny: Pair, option: str):
    config = replace(SHORT, entropy_threshold=0.7, max_branches=5, depth=5, nodes=7)
    variants = sweep_variants(tiny, config, option)
    values = [getattr(one.config, option) for one in variants]
    assert values == sorted({*SWEEP_VALUES[option], getattr(config, option)}) == [float(one.name) for one in variants]
    assert {replace(one.config, **{option: getattr(config, option)}) for one in variants} == {config}


def test_drafts_of_one_target_are_raced_with_prompt_lookup():
    first = models.pair("bad")
    pairs = {kind: replace(models.pair(kind), target=first.target) for kind in models.KINDS}
    variants = draft_variants(pairs, SHORT)
    traces = finished(race_variants(variants, models.picture(0), QUESTION))
    assert list(traces) == [TARGET_ONLY, *pairs, LOOKUP]
    assert {trace.token_ids for trace in traces.values()} == {models.expected(0, 0, 16)}
    assert len(traces["perfect"].steps) < len(traces["bad"].steps)
    assert [traces[kind].setting.draft for kind in pairs] == [pair.draft_name for pair in pairs.values()]
    assert traces[LOOKUP].config.drafter == "prompt-lookup"


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (lambda pair: sweep_variants(pair, SHORT, "width"), "cannot be swept"),
        (lambda pair: sweep_variants(pair, replace(SHORT, rule="chain"), "entropy_threshold"), "does not use"),
        (lambda pair: rule_variants(pair, replace(SHORT, rule="fixed", temperature=1.0, children="drawn")), "to best"),
        (lambda pair: rule_variants(pair, replace(SHORT, drafter="prompt-lookup")), "set it to model"),
        (lambda pair: draft_variants({"one": pair}, SHORT), "no second draft"),
        (lambda pair: draft_variants({"one": pair, "two": models.pair("mixed", 1)}, SHORT), "several"),
        (lambda pair: finished(race_variants(rule_variants(pair, SHORT), None, " ")), "the prompt is empty"),
    ],
)
def test_what_cannot_be_compared_is_refused(tiny: Pair, variants: Any, words: str):
    with pytest.raises(ValueError, match=words):
        variants(tiny)


def test_a_race_of_variants_can_be_stopped_between_any_two_decode_steps(tiny: Pair, monkeypatch: pytest.MonkeyPatch):
    """So that Stop and the deadline are seen within a step."""
    made: list[int] = []
    forward = Engine.forward

    def counted(self: Engine, batch: Batch, reduction: Reduction | None = None) -> Output:
        made.append(len(batch.tokens))
        return forward(self, batch, reduction)

    monkeypatch.setattr(Engine, "forward", counted)
    between = []
    for _ in race_variants([Variant("one", tiny, SHORT), Variant("two", tiny, SHORT)], models.picture(0), QUESTION):
        between.append(len(made))
        made.clear()
    assert max(between) <= SHORT.depth + 1 and sum(between) > 4 * (SHORT.depth + 1)


def test_a_longer_prompt_cannot_be_shown_to_the_draft():
    with pytest.raises(ValueError, match="more than the target's"):
        with_draft_prompt(models.prompt(3), models.prompt(0))


def test_a_reading_by_hand():
    half, sure = math.log(0.5), math.log(0.25)
    draft = torch.tensor([[half, half, -math.inf], [sure, math.log(0.75), -math.inf]], dtype=torch.float64)
    target = torch.tensor([[half, half, -math.inf], [half, half, -math.inf]], dtype=torch.float64)
    found = score_draft(draft, target, (1, 0))
    assert found.probs == pytest.approx((0.5, 0.25))
    assert found.entropies == pytest.approx((math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)))
    assert found.divergences == pytest.approx((0.0, 0.5 * math.log(2) + 0.5 * math.log(2 / 3)))
    assert found.divergence == pytest.approx(sum(found.divergences) / 2) and found.guesses[1] == 1


@pytest.mark.parametrize("number", range(len(models.CHATS)))
def test_expectations_are_those_of_a_plain_forward_pass(tiny: Pair, number: int):
    prompt, answer = models.prompt(number), models.reference(number)[:6]
    inputs = models.plain_inputs(number)
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
    with torch.inference_mode():
        plain = tiny.target(input_ids=ids, pixel_values=inputs.get("pixel_values"), use_cache=False).logits[0]
    wanted = torch.log_softmax(plain[-len(answer) - 1 : -1], dim=-1)
    assert torch.allclose(teacher_forced_log_probs(tiny.target, prompt, answer), wanted, atol=1e-8)
