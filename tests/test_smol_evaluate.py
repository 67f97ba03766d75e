"""What the evaluation of the pair smol counts: true and false mentions, numbers, and transformers' perplexity."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support import smol

from recipes.smol.evaluate import count_question, evaluate_truth, perplexity, read_number
from recipes.toy.evaluate import EVALUATION_START
from recipes.toy.language import caption
from recipes.toy.phrases import NUMBERS, PLURALS
from recipes.toy.scene import COLOURS, scenes
from specllava.config import DecodingConfig
from specllava.pair import Pair

SCENES = 40


class Answering:
    """A pair that answers by the scene whose turn it is: a caption in other colours or not, then a number."""

    def __init__(self, colours: Mapping[str, str], more: int) -> None:
        self.replies = cycle(self._replies(colours, more))

    def _replies(self, colours: Mapping[str, str], more: int) -> list[str]:
        replies = []
        for number, scene in enumerate(scenes("held-out", EVALUATION_START, SCENES)):
            words = caption(scene, random.Random(number)).answer.split()
            replies.append(" ".join(colours.get(word, word) for word in words))
            replies.append(f"I see {NUMBERS[count_question(scene, number)[1]] if not more else 'five'} of them.")
        return replies

    def generate(self, *_asked: Any) -> SimpleNamespace:
        return SimpleNamespace(text=next(self.replies))


def rates(answering: Answering) -> dict[str, Any]:
    return evaluate_truth(cast(Pair, answering), SCENES, DecodingConfig()).rates()


def test_true_captions_and_numbers_are_all_right() -> None:
    found = rates(Answering({}, 0))
    assert found["mentions_right"] == found["counts_right"] == 1.0
    assert found["mentions"] >= SCENES


def test_captions_in_other_colours_and_wrong_numbers_are_wrong() -> None:
    shifted: dict[str, str] = dict(zip(COLOURS, (*COLOURS[1:], COLOURS[0]), strict=True))
    found = rates(Answering(shifted, 1))
    assert found["mentions_right"] < 0.2  # another object may have the colour
    assert found["counts_right"] == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [("There are three cats.", 3), ("I see 2.", 2), ("Just a cat", 1), ("None at all", None), ("no, one", 0)],
)
def test_numbers_are_read_from_words_and_digits(text: str, number: int | None) -> None:
    assert read_number(text) == number


def test_a_question_of_number_asks_what_is_there() -> None:
    for number, scene in enumerate(scenes("held-out", EVALUATION_START, SCENES)):
        question, count = count_question(scene, number)
        kinds = [thing.kind for thing in scene.things]
        asked = re.fullmatch(r"How many (\w+) are there\?", question)
        assert asked and (asked[1] == "objects") == (number % 2 == 1)
        singular = next((kind for kind, plural in PLURALS.items() if plural == asked[1]), None)
        assert count == (len(kinds) if singular is None else kinds.count(singular)) > 0


def test_perplexity_is_that_of_transformers_own_loss() -> None:
    words = smol.tokenizer()
    model = smol.language_model(len(words)).double()
    text = "A red cat, twelve dogs."
    ids = words(text, return_tensors="pt").input_ids
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert perplexity(model, words, [text]) == pytest.approx(math.exp(loss), rel=1e-6)
    assert perplexity(model, words, [text, text]) == pytest.approx(math.exp(loss), rel=1e-6)
    with pytest.raises(ValueError, match="two tokens"):
        perplexity(model, words, [])
