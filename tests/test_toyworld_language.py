"""The toy world: every text is grammatical, true and complete, and keeps the held-out split; and its evaluation."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, islice
from operator import itemgetter

import numpy as np
import pytest
from PIL import Image

from recipes.toy import dialogue, evaluate, language, phrases, questions, wordings
from recipes.toy.datasets import CATEGORIES, START
from recipes.toy.draw import draw_scene
from recipes.toy.parsed_text import parse_text as _parse_text
from recipes.toy.scene import (
    COLOURS,
    COLUMNS,
    HELD_OUT,
    KINDS,
    NO_SNOW,
    PLACES,
    ROWS,
    TIMES,
    WEATHERS,
    Place,
    Scene,
    Split,
    Thing,
    Time,
    Weather,
    sample_scene,
)
from specllava.config import DecodingConfig
from specllava.distill.rows import data_dialogues
from specllava.files import SCENES, scene_images

COUNT = 3000
parse_text = cache(_parse_text)  # sentences recur
COLOUR = "|".join(COLOURS)
KIND = "|".join(KINDS)


@cache
def _described(split: Split, seed: int) -> tuple[Scene, str]:
    scene = sample_scene(seed, split)
    return scene, language.describe(scene, random.Random(seed)).answer


def _descriptions(split: Split = "train", count: int = COUNT) -> Iterator[tuple[Scene, str]]:
    return (_described(split, seed) for seed in range(count))


def _introduced(scene: Scene) -> Counter[tuple[str, str]]:
    return Counter(thing.combination for thing in scene.things)


_ERRORS = (
    re.compile(r"\b[Aa] (?=[aeiou])"),
    re.compile(r"\b[Aa]n (?=[^aeiou])"),
    re.compile(r"  | [.,!?:;]|[.,:;!?][.,:;!?]|[{}]|\.\w"),
    re.compile(
        rf"\b(?:a|an|one|single|another) (?:\w+ )?(?:\w+ )?(?:{'|'.join(phrases.PLURALS.values())})\b", re.IGNORECASE
    ),
    re.compile(rf"\b(?:two|three|four) (?:{COLOUR}) (?:{KIND})\b", re.IGNORECASE),
    re.compile(rf"\b(?:two|three|four) (?:{KIND}|{'|'.join(phrases.COUNTED)})\b", re.IGNORECASE),
    re.compile(r"\b(?:are|were) an? (?!\w+ \w+ and|\w+ \w+ \w+ and|\w+ \w+,|\w+ \w+ \w+,)", re.IGNORECASE),
    re.compile(r"\bis (?:two|three|four)\b|\bare (?:one|a single)\b", re.IGNORECASE),
    re.compile(rf"\b(?:{KIND}) are\b|\b(?:{'|'.join(phrases.PLURALS.values())}) is\b"),
    re.compile(r"\b(\w+) \1\b", re.IGNORECASE),
    re.compile(r"\bi\b"),
)


_MARKS = re.compile(r"(?<=[.!?]) ")


def _mistakes(text: str) -> list[str]:
    found = [match[0] for error in _ERRORS for match in error.finditer(text)]
    if text[-1] not in ".!?":
        found.append(text[-10:])
    return found + [s for s in _MARKS.split(text) if not s[:1].isupper()]


def test_the_checker_of_grammar_finds_mistakes() -> None:
    wrong = (
        "A orange bus.|One cats.|There are a cat.|Two cat here.|It is  red.|it is red.|It is red|There is two objects."
    )
    assert all(map(_mistakes, wrong.split("|"))) and not _mistakes("There is an orange bus.")


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_description_states_the_whole_scene_and_nothing_else(split: Split) -> None:
    for scene, text in _descriptions(split):
        reading = parse_text(text)
        assert (reading.place, reading.weather, reading.time) == (scene.place, scene.weather, scene.time), text
        assert reading.count == len(scene.things), text
        assert Counter(reading.combinations) == _introduced(scene), text
        assert set(reading.mentions) <= set(reading.combinations), text
        assert set(reading.kinds) <= {thing.kind for thing in scene.things}, text
        assert not _mistakes(text), (text, _mistakes(text))
        for sentence in map(parse_text, _MARKS.split(text)):
            assert sentence.place in (None, scene.place) and sentence.weather in (None, scene.weather), text
            assert sentence.time in (None, scene.time) and sentence.count in (None, len(scene.things)), text


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_caption_is_one_true_sentence_with_every_object(split: Split) -> None:
    for seed in range(COUNT):
        scene = sample_scene(seed, split)
        text = language.caption(scene, random.Random(seed)).answer
        reading = parse_text(text)
        assert Counter(reading.combinations) == _introduced(scene), text
        assert reading.place == scene.place, text
        assert reading.weather in (None, scene.weather) and reading.time in (None, scene.time), text
        assert text.count(".") == 1 and len(text.split()) <= 40 and not _mistakes(text), text


@pytest.mark.night
def test_no_held_out_combination_is_named_but_where_it_is_drawn() -> None:
    """In questions and answers of dialogues: never in text for training, and of another scene no other."""
    for split, count in (("train", 12_000), ("held-out", 6000)):
        for seed in range(count):
            scene = sample_scene(seed, split)
            for turn in dialogue.converse(scene, random.Random(seed)):
                reading = _parse_text(f"{turn.question} {turn.answer}")
                assert not (HELD_OUT - {*_introduced(scene)}) & {*reading.combinations, *reading.mentions}, turn


# "the red cat on the left", with all that helps to tell objects apart
_SPOT = "(?: (?:at the (?:front|back)|on the (?:left|right)|in the middle))*"
_NAME = rf"the (?:(?:large|small) )?(?:(?:{COLOUR}) )?(?:{KIND}){_SPOT}"
_RELATIONS: dict[str, Callable[[Thing, Thing], bool]] = {
    "is to the left of": lambda a, b: COLUMNS.index(a.column) < COLUMNS.index(b.column),
    "is to the right of": lambda a, b: COLUMNS.index(a.column) > COLUMNS.index(b.column),
    "(?:is next to|is right beside)": lambda a, b: (
        a.row == b.row and abs(COLUMNS.index(a.column) - COLUMNS.index(b.column)) == 1
    ),
    "(?:is|stands) in front of": lambda a, b: a.column == b.column and (a.row, b.row) == ("front", "back"),
    "is (?:hidden a little )?behind": lambda a, b: a.column == b.column and (a.row, b.row) == ("back", "front"),
    "is larger than": lambda a, b: (a.size, b.size) == ("large", "small"),
    "is smaller than": lambda a, b: (a.size, b.size) == ("small", "large"),
    "(?:has the same colour as|shares its colour with)": lambda a, b: a.colour == b.colour,
}


def _named(scene: Scene, name: str) -> Thing:
    """The only object that a definite name fits."""
    words = set(re.sub(r"\bthe\b|\bon\b|\bin\b|\bat\b", "", name.lower()).split())
    fitting = [t for t in scene.things if words <= {t.kind, t.colour, t.size, t.column, t.row}]
    assert len(fitting) == 1, (name, scene)
    return fitting[0]


def test_relations_are_true() -> None:
    seen: Counter[str] = Counter()
    for scene, text in _descriptions():
        for phrase, holds in _RELATIONS.items():
            for match in re.finditer(rf"({_NAME}) {phrase} ({_NAME})", text, re.IGNORECASE):
                assert holds(_named(scene, match[1]), _named(scene, match[2])), (match[0], scene)
                seen[phrase] += 1
    assert set(seen) == set(_RELATIONS) and min(seen.values()) > 50, seen


def test_positions_sizes_and_orders_are_true() -> None:
    checked = 0
    front = "at the front|foreground|close to us|front (?:left|mid|right)"
    back = "at the back|background|farther away|back (?:left|mid|right)"
    for scene, text in _descriptions():
        unique = {t.combination: t for t in scene.things if _introduced(scene)[t.combination] == 1}
        for sentence in _MARKS.split(text):
            reading = parse_text(sentence)
            if len(reading.combinations) != 1 or reading.combinations[0] not in unique:
                continue
            thing = unique[reading.combinations[0]]
            for column in re.findall(
                r"(?<!more )\b(?:on|to|in) the (left|right|middle|centre)\b", sentence, re.IGNORECASE
            ):
                assert column.lower().replace("centre", "middle") == thing.column, (sentence, thing)
                checked += 1
            row = re.search(rf"({front})|({back})", sentence, re.IGNORECASE)
            if row:
                assert ("front" if row[1] else "back") == thing.row, (sentence, thing)
            size = re.search(r"\b(?:(large|big|huge)|(small|little|tiny))\b", sentence, re.IGNORECASE)
            if size:
                assert ("large" if size[1] else "small") == thing.size, (sentence, thing)
        if len(unique) == len(scene.things):
            assert parse_text(text).combinations == tuple(thing.combination for thing in scene.things), text
    assert checked > COUNT


_SIZES = {"small": 0, "large": 1}


def _yes(scene: Scene, form: str, slots: dict[str, str]) -> bool | None:
    """Whether a question is to be answered with yes, worked out anew; None where it is no such question."""
    kind, colour = slots.get("kind"), slots.get("colour")
    kinds = [thing.kind for thing in scene.things]
    truths: dict[str, Callable[[], bool]] = {
        "exists": lambda: kind in kinds,
        "exists_coloured": lambda: (colour, kind) in _introduced(scene),
        "is_colour": lambda: (colour, kind) in _introduced(scene),
        "is_larger": lambda: _SIZES[_named(scene, slots["first"]).size] > _SIZES[_named(scene, slots["second"]).size],
        "same_colour": lambda: len({t.colour for t in scene.things if t.kind in (kind, slots["other"])}) == 1,
        "is_weather": lambda: slots["weather"] == scene.weather,
        "is_time": lambda: parse_text(slots["hour"]).time == scene.time,
        "is_place": lambda: parse_text(slots["place"]).place == scene.place,
    }
    return truths[form]() if form in truths else None


def _asked_for(scene: Scene, form: str, slots: dict[str, str]) -> list[Thing] | None:
    """The objects that a question asks for, worked out anew."""
    places = {"on the left": "left", "in the middle": "middle", "on the right": "right", "at the front": "front",
              "in the foreground": "front", "at the back": "back", "in the background": "back"}  # fmt: skip
    ways = {"next to": "(?:is next to|is right beside)", "in front of": "(?:is|stands) in front of",
            "behind": "is (?:hidden a little )?behind"}  # fmt: skip
    things = scene.things
    if form == "side":
        return [thing for thing in things if places[slots["spot"]] in (thing.column, thing.row)]
    if form == "which_colour":
        return [thing for thing in things if thing.colour == slots["colour"]]
    if form == "neighbour":
        here = _named(scene, slots["name"])
        return [thing for thing in things if thing != here and _RELATIONS[ways[slots["way"]]](thing, here)]
    return list(things) if form == "things" else None


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_every_answer_of_every_family_is_true(split: Split) -> None:
    checked: Counter[str] = Counter()
    for seed in range(COUNT):
        scene, rng = sample_scene(seed, split), random.Random(seed)
        query = dialogue.draw_query(scene, rng)
        form, slots = query.form, query.slots
        yes, things = _yes(scene, form, slots), _asked_for(scene, form, slots)
        own = [thing for thing in scene.things if thing.kind == slots.get("kind")]
        for answer in query.answers:
            words, reading = set(re.findall(r"[a-z]+", answer.lower())), parse_text(answer)
            if form == "unknowable":
                continue
            checked[form] += 1
            assert not _mistakes(answer), answer
            assert reading.place in (None, scene.place) and reading.time in (None, scene.time), (slots, answer)
            assert reading.weather in (None, scene.weather), (slots, answer)
            if form == "same_colour":
                pair = [(t.kind, t.colour) for each in ("kind", "other") for t in scene.things if t.kind == slots[each]]
                assert re.findall(r"the (\w+) is (\w+)", answer.lower()) == pair, (slots, answer, scene)
                assert answer.endswith(", so yes." if yes else ", so no."), (slots, answer, scene)
            elif yes is not None:
                assert answer.startswith("Yes" if yes else "No"), (slots, answer, scene)
            if things is not None:
                assert Counter(reading.combinations) == Counter(t.combination for t in things), (slots, answer, scene)
            if form in ("count", "exists"):
                assert Counter(reading.combinations) == Counter(t.combination for t in own), (slots, answer, scene)
            if form in ("colour", "size"):
                assert {getattr(thing, form) for thing in own} == words & {*COLOURS, *_SIZES}, (slots, answer, scene)
            if form in ("total", "count"):
                number = phrases.NUMBERS[len(scene.things if form == "total" else own)]
                assert number in words and not words & {*phrases.NUMBERS} - {number}, (slots, answer, scene)
                assert form == "total" or not own or answer.endswith(f", so {number}."), (slots, answer, scene)
            if form in ("where", "neighbour") and not words & {"no", "cannot"}:
                thing = _named(scene, slots["name"])
                assert {thing.column} == words & {*COLUMNS}, (slots, answer, scene)
                where, _, beside = answer.partition(". ")
                assert [row for row in ROWS if row in where.replace("foreground", "front")] == [thing.row], where
                assert form == "where" or beside.startswith(f"{slots['way'].capitalize()} it there "), (slots, answer)
            if form == "larger":
                first, second = (_named(scene, slots[each]) for each in ("first", "second"))
                winner = "both" if first.size == second.size else slots["first" if first.size == "large" else "second"]
                assert answer.lower().startswith(winner), (slots, answer, scene)
    asked = {form for form in phrases.read_wordings()["training"] if not form.startswith(("it_", "they_"))}
    assert set(checked) | {"unknowable", "look_up", "describe"} == asked
    assert min(checked.values()) > 30, checked


def test_what_is_hard_is_asked_more_often() -> None:
    """If one of three is about a kind or colour of several, it is asked; equal colours as often as others."""
    cats = [Thing("cat", colour, "small", column, "back") for colour, column in (("red", "left"), ("blue", "right"))]
    scene = Scene("city", "clear", "day", (*cats, Thing("dog", "red", "large", "middle", "front")))

    def share(draw: Callable[[Scene, random.Random], questions.Query]) -> float:
        drawn = [draw(scene, random.Random(seed)) for seed in range(2000)]
        slots = [" ".join(query.slots.values()) for query in drawn]
        return sum("cat" in text or "red" in text for text in slots) / len(drawn)

    plain, demanding = share(dialogue.draw_query), share(dialogue.draw_demanding)
    assert 0.2 < plain < 0.5 and demanding == pytest.approx(1 - (1 - plain) ** 3, abs=0.05)
    (looked,) = [turn for turn in dialogue.look_ups(scene, random.Random(1)) if "cat" in turn.question]
    assert looked.answer == "red, small, left, back; blue, small, right, back"

    drawn = [dialogue.draw_query(sample_scene(seed), random.Random(seed)) for seed in range(9000)]
    compared = [query for query in drawn if query.form == "same_colour"]
    equal = sum(query.answers[0].endswith("yes.") for query in compared) / len(compared)
    assert len(compared) > 200 and equal == pytest.approx(1 / 2, abs=0.08)


def test_no_training_question_is_one_of_the_evaluation() -> None:
    """In any case, or with another mark."""

    def plain(text: str) -> str:
        return text.lower().rstrip("?!. ") or text

    tables = phrases.read_wordings()

    @cache
    def unseen(form: str, slots: frozenset[tuple[str, str]]) -> set[str]:
        texts = tables["typed"].get(form, tables["unknowable_typed"])
        filled = (text.format(**{"kind": "", "colour": ""} | dict(slots)) for text in texts)
        return {plain(language.with_articles(text)) for text in filled}

    for seed in range(COUNT):
        scene, rng = sample_scene(seed), random.Random(seed)
        for query in [query for family in questions.FAMILIES if (query := family(scene, rng))]:
            asked = plain(wordings.worded(query, rng).question)
            assert asked not in unseen(query.form, frozenset(query.slots.items())), asked
    for seed in range(2000):  # a slip could make an American of it
        asked = plain(wordings.inform("What colour is the dog?", random.Random(seed)))
        assert asked not in unseen("colour", frozenset({("kind", "dog")}))
    assert len([text for texts in tables["typed"].values() for text in texts]) >= 60
    assert not {*tables["strange_typed"]} & {*questions.STRANGE}


# ---------------------------------------------------------------------------------------------------------- pictures


def differing(one: Image.Image, other: Image.Image, threshold: int = 24) -> int:
    """How many pixels differ clearly."""
    difference = np.abs(np.asarray(one, dtype=int) - np.asarray(other, dtype=int)).max(-1)
    return int((difference > threshold).sum())


def test_every_backdrop_and_every_kind_can_be_told_from_all_others() -> None:
    def picture(place: Place, weather: Weather = "clear", time: Time = "day") -> Image.Image:
        return draw_scene(Scene(place, weather, time, (), 3), 64)

    for place in PLACES:
        weathers = [weather for weather in WEATHERS if not (weather == "snowy" and place in NO_SNOW)]
        pictures = [picture(place, weather, time) for weather in weathers for time in TIMES]
        elsewhere = [picture(other) for other in PLACES if other != place]
        for i, one in enumerate(pictures):
            assert all(differing(one, other) > 150 for other in pictures[:i] + elsewhere)
    shown = [Scene("meadow", "clear", "day", (Thing(kind, "red", "large", "middle", "front"),), 3) for kind in KINDS]
    for one, other in combinations([draw_scene(scene, 128) for scene in shown], 2):
        assert differing(one, other, 60) > 250


# -------------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_true_description_is_right_in_everything(split):
    total: Counter[str] = Counter()
    for seed in range(400):
        scene = sample_scene(seed, split)
        total.update(evaluate.score_answer(scene, language.describe(scene, random.Random(seed)).answer))
    assert set(evaluate.description_rates(total).values()) == {1.0} and total["scenes"] == 400
    assert total["new_objects"] == (400 if split == "held-out" else 0)


def test_the_description_of_another_scene_is_wrong():
    for seed in range(200):
        scene, other = sample_scene(seed, "held-out"), sample_scene(seed + 5000, "held-out")
        score = evaluate.score_answer(scene, language.describe(other, random.Random(seed)).answer)
        there = {thing.combination for thing in scene.things}
        assert bool(score["no_invention"]) <= ({thing.combination for thing in other.things} <= there)
        assert score["place"] == (scene.place == other.place)
        assert score["count"] == (len(scene.things) == len(other.things))


def test_a_missing_and_an_invented_object_are_told_apart():
    scene = replace(sample_scene(1), things=(Thing("cat", "red", "small", "left", "front"),))
    two = (*scene.things, Thing("bus", "blue", "large", "right", "back"))
    text = language.describe(replace(scene, things=two), random.Random(0)).answer
    counted = itemgetter("objects", "objects_named", "no_invention")
    assert counted(evaluate.score_answer(scene, text)) == (1, 1, 0)
    missing = evaluate.score_answer(replace(scene, things=two), language.describe(scene, random.Random(0)).answer)
    assert counted(missing) == (2, 1, 1)
    twins = replace(scene, things=(*scene.things, replace(scene.things[0], column="right")))
    for text, named in (("There is a red cat in the meadow.", 1), ("There are two red cats in the meadow.", 2)):
        assert evaluate.score_answer(twins, text)["objects_named"] == named


MEASURES = {"trained wording", "typed wording", "not in the picture", "later turn"}


def test_only_a_true_answer_counts_and_every_measure_has_its_own_count(monkeypatch):
    asked = list(evaluate.trials("held-out", 40))
    truths = [trial.answers[-1] for trial in asked]
    for answers, rate in ((truths, 1.0), ([f"{truth} Not." for truth in truths], 0.0)):
        monkeypatch.setattr(evaluate, "answer_all", lambda *_, answers=answers: answers)
        result = evaluate.evaluate_questions(None, None, "held-out", 40)
        counts = {measure: forms["all"] for measure, forms in result["counts"].items()}
        assert set(counts) == MEASURES and all(right == rate * total for right, total in counts.values())
        assert sum(total for _, total in counts.values()) == len(asked) == len(result["wrong"]) or rate
        assert {name.partition(":")[0] for name in evaluate.rates(result)} == MEASURES


def test_a_later_turn_has_no_object_or_colour_that_stood_before_it():
    later = [trial for trial in evaluate.trials("train", 150) if trial.measure == "later turn"]
    assert len(later) > 60 and {len(trial.asked.history) for trial in later} == {1, 2}
    for trial in later:
        before = " ".join(f"{turn.question} {turn.answer}" for turn in trial.asked.history).lower()
        said = {word for word in (*KINDS, *COLOURS) if re.search(rf"\b{word}", before)}
        for answer in trial.answers:  # an answer may name its object again, or say "it"
            told = {word for word in COLOURS if re.search(rf"\b{word}\b", answer.lower())}
            assert not said & told, (before, trial)
        assert not any(re.search(rf"\b{word}\b", trial.asked.question.lower()) for word in said), (before, trial)


def test_typed_questions_have_their_slots_filled_and_name_what_training_never_named():
    typed = [trial for trial in evaluate.trials("train", 400) if trial.measure == "typed wording"]
    assert not any(re.search(r"[{}]|\ba [aeio]", trial.asked.question) for trial in typed)
    assert {trial.form for trial in typed} == set(phrases.read_wordings()["typed"])
    named = [trial.asked.question for trial in typed if "nothing like that" in trial.answers[0]]
    assert named and not {word for question in named for word in re.findall(r"\w+", question)} & {*questions.STRANGE}


def test_answers_in_batches_are_those_of_the_target_alone(pair):
    asked = [trial.asked for trial in islice(evaluate.trials("held-out", 3), 12)]
    texts = evaluate.answer_all(pair.target, pair.processor, asked, "")
    alone = DecodingConfig(drafter="none")
    for one, text in zip(asked, texts, strict=True):
        if not one.history:
            assert text == pair.generate(draw_scene(one.scene, 256), one.question, alone).text.strip()


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
            score = evaluate.score_answer(scene, talks[category][0]["answer"])
            assert score["place"] and score["count"] and score["no_invention"]
            assert score["objects_named"] == len(scene.things)
        assert phrases.NUMBERS[len(scene.things)] in talks["count"][0]["answer"].lower()
