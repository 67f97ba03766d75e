"""Rules that check free English against a toy scene: nothing true is called false, and what is false is noticed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from recipes.smol.statements import contradicts, loose_words, mentions
from recipes.toy.language import caption, describe
from recipes.toy.phrases import NUMBERS
from recipes.toy.questions import FAMILIES
from recipes.toy.scene import COLOURS, KINDS, Scene, Thing, sample_scene

SCENES = 150
SCENE = Scene(
    "beach", "clear", "day",
    (Thing("cat", "red", "small", "left", "back"), Thing("boat", "blue", "large", "right", "front"),
     Thing("cat", "white", "large", "right", "back")),
)  # fmt: skip


def test_nothing_that_is_true_by_construction_is_a_contradiction() -> None:
    for number in range(SCENES):
        scene, rng = sample_scene(number, "held-out"), random.Random(number)
        written = [write(scene, rng).answer for write in (describe, caption)]
        written += [answer for family in FAMILIES if (query := family(scene, rng)) for answer in query.answers]
        assert {text: why for text in written if (why := contradicts(scene, text))} == {}


@pytest.mark.parametrize("attribute", ["colour", "kind"])
def test_a_description_of_a_scene_with_one_other_object_is_a_contradiction(attribute: str) -> None:
    noticed = 0
    for number in range(SCENES):
        scene, rng = sample_scene(number), random.Random(number)
        first, *rest = scene.things
        colour = rng.choice([one for one in COLOURS if one not in {thing.colour for thing in scene.things}])
        kind = rng.choice([one for one in KINDS if one not in {thing.kind for thing in scene.things}])
        other = replace(first, colour=colour) if attribute == "colour" else replace(first, kind=kind)
        changed = replace(scene, things=(other, *rest))
        noticed += contradicts(changed, describe(scene, rng).answer) is not None
    assert noticed >= 0.97 * SCENES  # a kind that is there twice is named once in some


@pytest.mark.parametrize(
    "text",
    [
        "A small red cat sits on the left, under a blue sky.", "There are two cats and a boat.", "The boat is blue.",
        "I see no dog here.", "There isn't a green ball.", "A huge, blue boat!", "Three objects lie on the shore.",
        "Right in front of the white cat there is sand.",
    ],
)  # fmt: skip
def test_true_sentences_pass(text: str) -> None:
    assert contradicts(SCENE, text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A small blue cat sits there.", "object"), ("There are three cats.", "object"), ("The boat is red.", "object"),
        ("A dog runs.", "object"), ("The large red cat sleeps.", "object"), ("The boat is on the left.", "object"),
        ("It rains on the beach.", None), ("Rain falls.", "weather"), ("A city at the sea.", "place"),
        ("The night is cold.", "time"), ("Two objects lie here.", "count"), ("A green hill.", "colour"),
    ],
)  # fmt: skip
def test_false_sentences_are_named_by_what_is_false(text: str, why: str | None) -> None:
    found = contradicts(SCENE, text)
    assert (found or "").partition(":")[0] == (why or "")


def test_the_number_of_all_objects_is_true_as_a_word_and_as_a_digit() -> None:
    for scene, count in product(map(sample_scene, range(12)), range(1, len(NUMBERS))):
        for word in (NUMBERS[count], str(count)):
            sentence = f"There {'is' if count == 1 else 'are'} {word} object{'' if count == 1 else 's'}."
            assert (contradicts(scene, sentence) is None) == (count == len(scene.things)), sentence


def test_colours_of_what_is_no_object_are_counted_apart() -> None:
    text = "A red cat under a blue sky, with white clouds and a blue boat."
    assert loose_words(text) == ["blue sky", "white clouds"]
    assert [(one.colour, one.kind) for one in mentions(text)] == [("red", "cat"), ("blue", "boat")]
