"""Scoring of the toy target: true descriptions pass, each kind of error is counted where it belongs."""

import random
import re
from dataclasses import replace
from itertools import islice

import pytest

from recipes.toy import evaluate
from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import (
    EVALUATION_START,
    Tally,
    answer_all,
    evaluate_questions,
    held_out_prompts,
    rates,
    score_answer,
    trials,
    wilson,
)
from recipes.toy.language import describe
from recipes.toy.phrases import read_wordings
from recipes.toy.questions import STRANGE
from recipes.toy.scene import COLOURS, HELD_OUT, KINDS, Thing, sample_scene
from specllava.config import DecodingConfig


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


MEASURES = {"trained wording", "typed wording", "not in the picture", "later turn"}


def test_only_a_true_answer_counts_and_every_measure_has_its_own_count(monkeypatch):
    asked = list(trials("held-out", 40))
    truths = [trial.answers[-1] for trial in asked]
    for answers, rate in ((truths, 1.0), ([f"{truth} Not." for truth in truths], 0.0)):
        monkeypatch.setattr(evaluate, "answer_all", lambda *_, answers=answers: answers)
        result = evaluate_questions(None, None, "held-out", 40)
        counts = {measure: forms["all"] for measure, forms in result["counts"].items()}
        assert set(counts) == MEASURES and all(right == rate * total for right, total in counts.values())
        assert sum(total for _, total in counts.values()) == len(asked) == len(result["wrong"]) or rate
        assert {name.partition(":")[0] for name in rates(result)} == MEASURES


def test_a_later_turn_has_no_object_or_colour_that_stood_before_it():
    later = [trial for trial in trials("train", 150) if trial.measure == "later turn"]
    assert len(later) > 60 and {len(trial.asked.history) for trial in later} == {1, 2}
    for trial in later:
        before = " ".join(f"{turn.question} {turn.answer}" for turn in trial.asked.history).lower()
        said = {word for word in (*KINDS, *COLOURS) if re.search(rf"\b{word}", before)}
        for answer in trial.answers:  # an answer may name its object again, or say "it"
            told = {word for word in COLOURS if re.search(rf"\b{word}\b", answer.lower())}
            assert not said & told, (before, trial)
        assert not any(re.search(rf"\b{word}\b", trial.asked.question.lower()) for word in said), (before, trial)


def test_typed_questions_have_their_slots_filled_and_name_what_training_never_named():
    typed = [trial for trial in trials("train", 400) if trial.measure == "typed wording"]
    assert not any(re.search(r"[{}]|\ba [aeio]", trial.asked.question) for trial in typed)
    assert {trial.form for trial in typed} == set(read_wordings()["typed"])
    named = [trial.asked.question for trial in typed if "nothing like that" in trial.answers[0]]
    assert named and not {word for question in named for word in re.findall(r"\w+", question)} & {*STRANGE}


def test_answers_in_batches_are_those_of_the_target_alone(pair):
    asked = [trial.asked for trial in islice(trials("held-out", 3), 12)]
    texts = answer_all(pair.target, pair.processor, asked, "")
    alone = DecodingConfig(drafter="none")
    for one, text in zip(asked, texts, strict=True):
        if not one.history:
            assert text == pair.generate(draw_scene(one.scene, 256), one.question, alone).text.strip()


@pytest.mark.parametrize("right", [0, 7, 30])
def test_the_interval_of_a_rate_holds_exactly_the_rates_that_the_score_test_keeps(right):
    low, high = wilson(right, 30)
    for bound in (low, high):
        if 0 < bound < 1:
            assert (right / 30 - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / 30)
    assert low <= right / 30 <= high
