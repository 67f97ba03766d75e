"""What sentences say of a step: the branch that was right, what was drawn, and doubt in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest
from support.shipped_races import shipped_races, shipped_traces
from support.visual_traces import synthetic_race

from specllava.core.metrics import judged_nodes
from specllava.core.trace import DecodeTrace, StepTrace
from visual.figures.labels import even_choices, token_label
from visual.player.component import player_arguments
from visual.player.explanations import node_reasons, step_sentence
from visual.player.frames import instructive_step


def all_steps() -> Iterator[tuple[DecodeTrace, StepTrace]]:
    for trace in (*shipped_traces(), *(synthetic_race(seed)["speculative"] for seed in range(6))):
        for step in trace.steps:
            yield trace, step


def said(trace: DecodeTrace, step: StepTrace) -> str:
    return "".join(text for _, text in step_sentence(trace, step))


def test_d4_the_sentence_tells_which_branch_was_right() -> None:
    """And (0.54) had lost, At (0.31) had saved seven tokens, and the sentence said "the whole branch was right"."""
    told = 0
    for trace, step in all_steps():
        sentence = said(trace, step)
        saved = [judged for judged in judged_nodes(step) if judged.outcome == "saved"]
        if saved:
            told += 1
            winner = token_label(trace, step.emitted[saved[0].position])
            favourite = max(saved[0].children, key=lambda node: step.tree.log_probs[node])
            assert sentence.startswith(f"Torn between {token_label(trace, step.tree.tokens[favourite])} 0.")
            assert f"; {winner} was right. Drafted" in sentence
        branched = any(len(judged.children) > 1 and judged.outcome != "missed" for judged in judged_nodes(step))
        assert sentence.startswith("Torn between") == branched
    assert told > 40


def test_d4_the_opening_sentence() -> None:
    trace = next(race for race in shipped_races() if race.name == "1-describe").lead
    opening = said(trace, trace.steps[instructive_step(trace)])
    assert opening.startswith("Torn between And 0.54 and At 0.31 it tried both; At was right. Drafted 12 tokens")


@pytest.mark.parametrize("children", ["best", "drawn"])
def test_d15_nothing_is_right_where_tokens_are_drawn(children: Literal["best", "drawn"]) -> None:
    for trace, step in all_steps():
        config = replace(trace.config, temperature=0.8, children=children, rule="fixed")
        drawn = replace(trace, config=config)
        texts = [said(drawn, step), *node_reasons(drawn, step)]
        told = re.sub("|".join(re.escape(text.strip()) for text in trace.texts.values() if text.strip()), "", texts[0])
        assert "was right" not in told and "target wanted" not in told
        assert not any("own choice" in text for text in texts[1:])


def test_d30_an_entropy_is_told_as_even_choices_too() -> None:
    """Nats say nothing to a newcomer; e to their power does: 1.1 nats are three words that are equally likely."""
    assert even_choices(1.0986) == "≈ 3.0 even choices" and even_choices(0.0) == "≈ 1.0 even choices"
    for trace, step in all_steps():
        for reason in node_reasons(trace, step):
            assert reason.count("was unsure (") == reason.count("even choices")
    glossary = player_arguments([])["html_template"]
    assert "even choices" in glossary


def test_d30_each_ratio_has_one_name() -> None:
    template = player_arguments([])["html_template"]
    assert not re.search(r"tokens (a|per) (pass|step)\b|log-probability", template)
    assert "tokens per target pass" in template
    assert not re.search(r">[^<]*\brest, prefill", template)
