"""The scenes that ship are those of the recipe, with its questions and true answers."""

import json

from PIL import Image

from recipes.toy.datasets import CATEGORIES, START
from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import score_answer
from recipes.toy.phrases import NUMBERS
from recipes.toy.scene import sample_scene
from specllava.distill.rows import data_dialogues
from specllava.files import SCENES, scene_images


def test_scenes_that_ship_have_every_category_in_turn_and_are_those_of_the_recipe():
    for split, count in (("held-out", 240), ("train", 60)):
        found = data_dialogues(SCENES, None, count + 1, 3, split)
        assert [one.category for one in found] == [CATEGORIES[n % 4] for n in range(count)]
        assert [one.images for one in found] == [(image,) for image in scene_images(split)]
        assert all((len(one.turns) > 1) == (one.category == "dialogue") for one in found)
        for number in (0, 1, 2, 3, count - 1):
            drawn = draw_scene(sample_scene(START + number, split), 256)
            assert drawn.tobytes() == Image.open(found[number].images[0]).convert("RGB").tobytes()
    assert all(len(one.turns) == 1 for one in data_dialogues(SCENES, None, 8, 1, "held-out"))


def test_every_question_of_a_scene_that_ships_has_a_true_answer():
    """Counted in the scene: what an answer says of place, number and things is parsed as the evaluation does."""
    for row in map(json.loads, SCENES.read_text(encoding="utf-8").splitlines()):
        split, _, number = row["id"].rpartition("-")
        scene, talks = sample_scene(int(number), split), row["questions"]
        assert row["split"] == split and [one["question"] for one in talks[row["category"]]] == row["turns"]
        assert set(talks) == {*CATEGORIES} and all(one["answer"] for talk in talks.values() for one in talk)
        for category in ("describe", "story"):
            tally = score_answer(scene, talks[category][0]["answer"])
            assert tally.place and tally.count and tally.no_invention and tally.objects_named == len(scene.things)
        assert NUMBERS[len(scene.things)] in talks["count"][0]["answer"].lower()
