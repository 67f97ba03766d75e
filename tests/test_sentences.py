"""What sentences say of a step: the branch that was right, what was drawn, and doubt in words."""

from __future__ import annotations

import math
import re
import tracemalloc
from dataclasses import replace
from typing import Any, Literal

import pytest
from support.shipped_races import shipped_races, shown_steps
from support.visual_traces import hand_made, retexted, synthetic_race

from specllava.metrics import judged_nodes
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import DraftTree, Pruned
from visual.figures.labels import END_MARK, even_choices, token_label
from visual.figures.reasons import reasons
from visual.figures.step_layout import StepLayout
from visual.player import explanations as words
from visual.player.component import player_arguments
from visual.player.explanations import node_reasons, step_sentence
from visual.player.frames import instructive_step, picture
from visual.player.node_cards import node_cards
from visual.player.labels import word_at


def said(trace: DecodeTrace, step: StepTrace | None = None) -> str:
    """The sentence of a step, of the first one if none is given."""
    return "".join(text for _, text in step_sentence(trace, step or trace.steps[0]))


def test_the_sentence_names_the_branch_that_was_right() -> None:
    """And (0.54) had lost, At (0.31) had saved seven tokens, and the sentence said "the whole branch was right"."""
    told = 0
    for trace, step in shown_steps():
        sentence = said(trace, step)
        saved = [judged for judged in judged_nodes(step) if judged.outcome == "saved"]
        if saved:
            told += 1
            winner = word_at(trace, step, step.emitted_nodes[saved[0].position])
            assert f"{winner} was {'accepted' if trace.config.temperature else 'right'}. " in sentence
            assert sentence.startswith(("Torn between ", "The draft's favourite was "))
    assert told > 40


def test_the_opening_sentence() -> None:
    trace = next(race for race in shipped_races() if race.name == "1-describe").lead
    opening = said(trace, trace.steps[instructive_step(trace)])
    assert opening.startswith("Torn between pink (0.48) and white (0.44), the draft tried both: white was right. ")


@pytest.mark.parametrize("children", ["best", "drawn"])
def test_nothing_is_right_where_tokens_are_drawn(children: Literal["best", "drawn"]) -> None:
    for trace, step in shown_steps():
        config = replace(trace.config, temperature=0.8, children=children, rule="fixed")
        drawn = replace(trace, config=config)
        texts = [said(drawn, step), *node_reasons(drawn, step)]
        told = re.sub("|".join(re.escape(text.strip()) for text in trace.texts.values() if text.strip()), "", texts[0])
        assert "was right" not in told and "target wanted" not in told
        assert not any("own choice" in text for text in texts[1:])


def test_an_entropy_is_given_as_even_choices_too() -> None:
    """Nats say nothing to a newcomer; e to their power does: 1.1 nats are three words that are equally likely."""
    assert even_choices(1.0986) == "≈ 3.0 even choices" and even_choices(0.0) == "≈ 1.0 even choices"
    for trace, step in shown_steps():
        for reason in node_reasons(trace, step):
            assert reason.count("was unsure (") == reason.count("even choices")


def test_each_ratio_has_one_name() -> None:
    template = player_arguments([])["html_template"]
    assert not re.search(r"tokens (a|per) (pass|step)\b|log-probability", template)
    assert "tokens per target pass" in template
    assert not re.search(r">[^<]*\brest, prefill", template)


def test_sentences_on_hand_made_steps() -> None:
    branching = DraftTree(
        (8, 1, 2, 3, 5), (-1, 0, 1, 2, 0), (0.0, -0.1, -0.1, math.log(0.9), -2.0), (0.7, 0.1, 0.2, None, None)
    )
    assert said(hand_made(branching, (1, 2), 4)) == (
        "After left side the draft expected of (0.90); the target wanted and (0.97). "
        "4 guesses on 2 branches, 2 accepted."
    )
    chain = DraftTree((8, 1), (-1, 0), (0.0, -0.1), (0.1, None))
    assert said(hand_made(chain, (1,), 4)) == (
        "The whole branch was right; after a left the target went on with and (0.97). 1 guess on 1 branch, 1 accepted."
    )
    assert said(hand_made(chain, (), 4)) == (
        "After a the draft expected left (0.90); the target wanted and (0.97). 1 guess on 1 branch, none accepted."
    )
    assert said(hand_made(chain, (1,), 0)).startswith("After a left the target ended the answer (0.97).")
    ended = DraftTree((8, 1, 0, 3), (-1, 0, 1, 2), (0.0, -0.1, -0.1, -0.1), (0.1, 0.1, 0.1, None))
    for tail in ((), (3,)):  # the draft went on behind the end, and the target with it
        trace = hand_made(ended, (1, 2, *tail), 4)
        assert said(trace).startswith(f"With {END_MARK} the answer was complete. 3 guesses on 1 branch, 2 accepted")
        assert said(trace).endswith(f"; 1 after {END_MARK}, where none can count.")
        assert picture(trace, trace.steps[0])["focus"] == 2
    cut = hand_made(ended, (1,), 4, room=1)
    assert said(cut).startswith("With these the answer had the 160 tokens that it was allowed. 3 guesses")
    assert picture(cut, cut.steps[0])["focus"] == 1
    assert said(hand_made(DraftTree.only_root(8), (), 4)) == "Nothing was drafted; the target said and."


def test_reasons_name_what_the_target_wanted() -> None:
    tree = DraftTree((8, 1, 5, 3), (-1, 0, 0, 2), (0.0, -0.1, -2.0, -0.5), (0.9, None, 0.1, None))
    trace = hand_made(tree, (1,), 4)
    step = trace.steps[0]
    told = "Before this word the draft was unsure (0.90 nats, ≈ 2.5 even choices), so it tried 2 words"
    assert told in node_reasons(trace, step)[2]
    assert "The target wanted left (0.97)." in node_reasons(trace, step)[2]
    assert "left at big" in node_reasons(trace, step)[3]
    assert "it stands" in node_reasons(trace, step)[1]


def test_pruned_guesses_are_named_at_their_parent() -> None:
    tree = DraftTree((8, 1), (-1, 0), (0.0, -0.1), (0.9, None))
    trace = hand_made(tree, (1,), 4)
    pruned = (Pruned(0, 5, math.log(0.08)), Pruned(0, 3, math.log(0.03)), Pruned(1, 4, math.log(0.5)))
    step = replace(trace.steps[0], pruned=pruned)
    assert node_reasons(trace, step)[0].endswith("Pruned after it, unchecked: big (0.08), of (0.03).")
    assert node_reasons(trace, step)[1].endswith("(0.50); one of them the target wanted.")


def test_reasons_of_a_drawn_answer_give_both_probabilities() -> None:
    tree = DraftTree((8, 1, 5), (-1, 0, 0), (0.0, -0.1, -2.0), (0.9, None, None))
    trace = hand_made(tree, (1,), 4)
    chosen = replace(trace, config=replace(trace.config, temperature=1.0))
    assert "the draft 0.14; the target's draw fell on left." in node_reasons(chosen, trace.steps[0])[2]
    assert "the draft 0.90; the target's draw fell on it." in node_reasons(chosen, trace.steps[0])[1]
    drawn = replace(trace, config=replace(chosen.config, rule="fixed", children="drawn"))
    assert "the draft 0.14; chance decided against it." in node_reasons(drawn, trace.steps[0])[2]
    assert "chance decided for it." in node_reasons(drawn, trace.steps[0])[1]


def test_reasons_are_found_once_for_all_nodes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[StepTrace] = []

    def counting(step: StepTrace, sampled: bool) -> Any:
        counted.append(step)
        return reasons(step, sampled)

    monkeypatch.setattr(words, "reasons", counting)
    trace = synthetic_race(1)["speculative"]
    node_cards(StepLayout(trace, trace.steps[0]))
    assert counted == [trace.steps[0]]


@pytest.mark.parametrize("character", ["w", "\u2003"])
def test_a_label_looks_at_no_more_of_a_token_than_it_shows(character: str) -> None:
    trace = retexted(hand_made(DraftTree((8, 1), (-1, 0), (0.0, -1.0), (None,) * 2), (), 0), {1: character * 10**6})
    tracemalloc.start()
    try:
        label = token_label(trace, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(label) == 24 and label.endswith("…")
    assert peak < 4 * 2**20


def test_labels_make_blanks_visible() -> None:
    trace = hand_made(DraftTree((8, 6, 7, 1), (-1, 0, 1, 2), (0.0, -1.0, -1.0, -1.0), (None,) * 4), (), 0)
    assert [token_label(trace, token) for token in (6, 7, 1, 0)] == ["␣", "⏎", "left", END_MARK]
