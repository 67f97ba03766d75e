"""Scoring of the toy target: true descriptions pass, each kind of error is counted where it belongs."""

import random
from dataclasses import replace

import pytest

from recipes.toy.evaluate import EVALUATION_START, Tally, held_out_prompts, score_answer
from recipes.toy.language import describe
from recipes.toy.scene import HELD_OUT, Thing, sample_scene


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_true_description_is_right_in_everything(split):
    total = Tally()
    for seed in range(400):
        scene = sample_scene(seed, split)
        total += score_answer(scene, describe(scene, random.Random(seed)).answer)
    rates = total.rates()
    assert rates.pop("scenes") == 400
    assert set(rates.values()) == {1.0}
    assert total.new_objects == (400 if split == "held-out" else 0)


def test_the_description_of_another_scene_is_wrong():
    for seed in range(200):
        scene, other = sample_scene(seed, "held-out"), sample_scene(seed + 5000, "held-out")
        tally = score_answer(scene, describe(other, random.Random(seed)).answer)
        there = {thing.combination for thing in scene.things}
        assert bool(tally.no_invention) <= ({thing.combination for thing in other.things} <= there)
        assert tally.place == (scene.place == other.place)
        assert tally.count == (len(scene.things) == len(other.things))


def test_a_missing_and_an_invented_object_are_told_apart():
    scene = replace(sample_scene(1), things=(Thing("cat", "red", "small", "left", "front"),))
    two = (*scene.things, Thing("bus", "blue", "large", "right", "back"))
    text = describe(replace(scene, things=two), random.Random(0)).answer
    invented = score_answer(scene, text)
    assert (invented.objects_named, invented.no_invention) == (1, 0)
    missing = score_answer(replace(scene, things=two), describe(scene, random.Random(0)).answer)
    assert (missing.objects, missing.objects_named, missing.no_invention) == (2, 1, 1)


def test_an_object_named_once_does_not_count_for_two():
    twin = Thing("cat", "red", "small", "left", "front")
    scene = replace(sample_scene(1), things=(twin, replace(twin, column="right")))
    assert score_answer(scene, "There is a red cat in the meadow.").objects_named == 1
    assert score_answer(scene, "There are two red cats in the meadow.").objects_named == 2


def test_evaluation_scenes_are_new_and_hold_one_new_combination_each():
    for number, (scene, prompt) in enumerate(held_out_prompts("held-out", 50)):
        assert scene == sample_scene(EVALUATION_START + number, "held-out")
        assert sum(thing.combination in HELD_OUT for thing in scene.things) == 1
        assert prompt.endswith((".", "?"))
