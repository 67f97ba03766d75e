"""Questions about toy scenes, a function for each family: all answers true, all wording a function of (scene, rng).

A question never names a held-out combination that the scene does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from recipes.toy import phrases
from recipes.toy.language import QuestionAnswer, enumerate_words, polish, where
from recipes.toy.phrases import NUMBERS, PLURALS
from recipes.toy.relations import name, step_between
from recipes.toy.scene import COLOURS, COLUMNS, HELD_OUT, KINDS, PLACES, TIMES, WEATHERS, Scene, Thing


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn, with the referent of "it" or "they" after it and the properties already stated of that referent."""

    turn: QuestionAnswer
    focus: tuple[Thing, ...] = ()
    stated: frozenset[str] = frozenset()  # what is known of the focus: colour, where, size


Family = Callable[[Scene, random.Random], Exchange | None]


def worded(rng: random.Random, questions: Sequence[str], answers: Sequence[str]) -> QuestionAnswer:
    return QuestionAnswer(polish(rng.choice(questions)), polish(rng.choice(answers)))


def _seen(rng: random.Random, things: list[Thing]) -> str:
    """Word objects in indefinite form, such as "a red cat and a small blue bus"."""
    parts = []
    for thing in things:
        size = f"{rng.choice(phrases.SIZE_WORDS[thing.size])} " if rng.random() < 0.5 else ""
        parts.append(f"a {size}{thing.colour} {thing.kind}")
    return enumerate_words(parts)


def _of_kind(scene: Scene, kind: str) -> list[Thing]:
    return [thing for thing in scene.things if thing.kind == kind]


def _there(count: int) -> str:
    return "there is" if count == 1 else "there are"


def _colour(scene: Scene, rng: random.Random) -> Exchange | None:
    thing = rng.choice(scene.things)
    if len(_of_kind(scene, thing.kind)) > 1:
        return None
    kind, colour = thing.kind, thing.colour
    questions = (
        f"What colour is the {kind}?",
        f"Which colour does the {kind} have?",
        f"Tell me the colour of the {kind}.",
    )
    answers = (
        f"the {kind} is {colour}",
        f"it is a {colour} {kind}",
        f"it is {colour}",
        f"the colour of the {kind} is {colour}",
    )
    return Exchange(worded(rng, questions, answers), (thing,), frozenset({"colour"}))


def _total(scene: Scene, rng: random.Random) -> Exchange:
    total = len(scene.things)
    noun = rng.choice(phrases.COUNTED)
    n = f"{NUMBERS[total]} {noun}{'s' if total > 1 else ''}"
    questions = ("How many objects are there?", "How many things can you see?", "Count the objects.")
    answers = (f"{_there(total)} {n}", f"I can see {n}", f"the picture shows {n}", f"I count {n} here")
    return Exchange(worded(rng, questions, answers), scene.things if total > 1 else ())


def _count_kind(scene: Scene, rng: random.Random) -> Exchange:
    kind = rng.choice(KINDS) if rng.random() < 0.35 else rng.choice(scene.things).kind
    things = _of_kind(scene, kind)
    count = len(things)
    plural = PLURALS[kind]
    n = f"{NUMBERS[count]} {kind if count == 1 else plural}"
    questions = (f"How many {plural} can you see?", f"How many {plural} are there?", f"Count the {plural}.")
    if count:
        answers = (f"{_there(count)} {n}", f"I can see {n}", n)
    else:
        answers = (
            f"there are no {plural} in this picture",
            f"I cannot see any {plural}",
            f"none, there are no {plural} here",
        )
    return Exchange(worded(rng, questions, answers), tuple(things))


def _where(scene: Scene, rng: random.Random) -> Exchange | None:
    thing = rng.choice(scene.things)
    known = name(scene, thing)
    if " the " in known:  # named by its position, which would reveal the answer
        return None
    spot = where(thing, rng)
    questions = (f"Where is {known}?", f"Where can I find {known}?", f"In which part of the picture is {known}?")
    answers = (f"{known} is {spot}", f"it is {spot}", f"you can find it {spot}", f"look {spot}")
    return Exchange(worded(rng, questions, answers), (thing,), frozenset({"where", "colour"}))


def _side(scene: Scene, rng: random.Random) -> Exchange:
    """Ask which objects are in a column of the picture."""
    column = rng.choice(COLUMNS)
    spot = phrases.COLUMN_PHRASES[column][0]
    things = [thing for thing in scene.things if thing.column == column]
    questions = (f"What is {spot}?", f"What can you see {spot}?", f"Is there anything {spot}?")
    if things:
        seen = _seen(rng, things)
        answers = (f"{_there(len(things))} {seen} {spot}", f"{spot} I can see {seen}", seen)
    else:
        answers = (f"there is nothing {spot}", "nothing, that part of the picture is empty", f"nothing stands {spot}")
    focus = tuple(things) if len(things) == 1 else ()
    stated = frozenset({"colour", "where"})
    return Exchange(worded(rng, questions, answers), focus, stated)


_NEIGHBOURS: Final[dict[str, frozenset[str]]] = {
    "next to": frozenset({"next"}),
    "behind": frozenset({"behind"}),
    "in front of": frozenset({"in front"}),
}


def _neighbour(scene: Scene, rng: random.Random) -> Exchange:
    """Ask which object is next to, behind or in front of an object."""
    thing = rng.choice(scene.things)
    known = name(scene, thing)
    others = {way: [other for other in scene.things if other != thing and step_between(other, thing) in steps]
              for way, steps in _NEIGHBOURS.items()}  # fmt: skip
    taken = [way for way, things in others.items() if things]
    way = rng.choice(taken) if taken and rng.random() < 0.8 else rng.choice(tuple(_NEIGHBOURS))
    questions = (f"What is {way} {known}?", f"What stands {way} {known}?", f"Can you see anything {way} {known}?")
    if others[way]:
        seen = _seen(rng, others[way])
        answers = (f"{_there(len(others[way]))} {seen} {way} {known}", f"{way} {known} I can see {seen}", seen)
    else:
        answers = (f"there is nothing {way} {known}", f"nothing stands {way} {known}", "nothing at all")
    focus = tuple(others[way]) if len(others[way]) == 1 else ()
    return Exchange(worded(rng, questions, answers), focus, frozenset({"colour"}))


def _exists(scene: Scene, rng: random.Random) -> Exchange:
    """Ask whether there is one of a kind; as often yes as no."""
    if rng.random() < 0.5:
        thing = rng.choice(scene.things)
        things = _of_kind(scene, thing.kind)
        plain = (
            f"yes, there is a {thing.kind}"
            if len(things) == 1
            else f"yes, there are {NUMBERS[len(things)]} {PLURALS[thing.kind]}"
        )
        answers: Sequence[str] = (plain, f"{plain} in this picture", f"yes, I can see {_seen(rng, things)}")
        kind = thing.kind
    else:
        things = []
        kind = rng.choice([kind for kind in KINDS if not _of_kind(scene, kind)])
        other = rng.choice(scene.things)
        answers = (
            f"no, there is no {kind}",
            f"no, I cannot see a {kind}",
            f"no, but there is {_seen(rng, [other])}",
            "no",
        )
    questions = (f"Is there a {kind}?", f"Can you see a {kind}?", f"Is there a {kind} in this picture?")
    turn = worded(rng, questions, answers)
    stated = frozenset({"colour"} if things and things[0].colour in turn.answer else ())
    return Exchange(turn, tuple(things), stated)


def _exists_coloured(scene: Scene, rng: random.Random) -> Exchange:
    """Ask whether there is, say, a red cat; wrong ones are half right, and never a held-out combination."""
    thing = rng.choice(scene.things)
    present = {other.combination for other in scene.things}
    if rng.random() < 0.5:
        colour, kind = thing.combination
        answers: Sequence[str] = (
            f"yes, there is a {colour} {kind} {where(thing, rng)}",
            f"yes, I can see it {where(thing, rng)}",
            "yes",
        )
    else:
        near = [(c, thing.kind) for c in COLOURS] + [(thing.colour, k) for k in KINDS]
        colour, kind = rng.choice([pair for pair in near if pair not in present and pair not in HELD_OUT])
        seen = _seen(rng, [thing])
        answers = (f"no, there is no {colour} {kind}", f"no, but I can see {seen}", f"no, but there is {seen}", "no")
    questions = (
        f"Is there a {colour} {kind}?",
        f"Can you see a {colour} {kind}?",
        f"Do you see a {colour} {kind} here?",
    )
    return Exchange(worded(rng, questions, answers))


def _which_colour(scene: Scene, rng: random.Random) -> Exchange:
    """Ask which objects have a colour."""
    colour = rng.choice(COLOURS) if rng.random() < 0.3 else rng.choice(scene.things).colour
    things = [thing for thing in scene.things if thing.colour == colour]
    questions = (f"What is {colour} in this picture?", f"Is anything {colour}?", f"Can you see anything {colour}?")
    if things:
        seen = _seen(rng, things)
        answers = (f"{_there(len(things))} {seen}", f"I can see {seen}", seen)
    else:
        answers = (f"nothing is {colour} here", f"I cannot see anything {colour}", f"there is nothing {colour}")
    return Exchange(worded(rng, questions, answers))


def _larger(scene: Scene, rng: random.Random) -> Exchange | None:
    pairs = [(a, b) for a in scene.things for b in scene.things if a.size == "large" and b.size == "small"]
    if not pairs:
        return None
    large, small = rng.choice(pairs)
    winner, loser = name(scene, large), name(scene, small)
    first, second = (winner, loser) if rng.random() < 0.5 else (loser, winner)
    if rng.random() < 0.6:
        questions: Sequence[str] = (f"Which is larger, {first} or {second}?", f"What is bigger, {first} or {second}?")
        answers = (f"{winner} is larger", f"{winner} is larger than {loser}", f"{winner}")
        return Exchange(worded(rng, questions, answers))
    questions = (f"Is {first} larger than {second}?", f"Is {first} bigger than {second}?")
    if first == winner:
        answers = (f"yes, {winner} is larger", f"yes, {winner} is larger than {loser}", "yes")
    else:
        answers = (f"no, {winner} is larger", f"no, {first} is smaller than {second}", "no")
    return Exchange(worded(rng, questions, answers))


def _same_colour(scene: Scene, rng: random.Random) -> Exchange | None:
    """Compare the colours of two objects whose kinds are enough to name them."""
    single = [thing for thing in scene.things if len(_of_kind(scene, thing.kind)) == 1]
    if len(single) < 2:
        return None
    a, b = rng.sample(single, 2)
    questions = (
        f"Do the {a.kind} and the {b.kind} have the same colour?",
        f"Are the {a.kind} and the {b.kind} of the same colour?",
    )
    if a.colour == b.colour:
        answers = ("yes, both have the same colour", f"yes, both are {a.colour}", "yes, they have the same colour")
    else:
        different = f"no, the {a.kind} is {a.colour} and the {b.kind} is {b.colour}"
        answers = (different, different.replace(" and ", ", but "), "no, they have different colours")
    return Exchange(worded(rng, questions, answers))


def _weather(scene: Scene, rng: random.Random) -> Exchange:
    named = rng.choice(phrases.WEATHER_NAMES[scene.weather])
    sky = rng.choice(phrases.SKIES[scene.weather, scene.time])
    if rng.random() < 0.5:
        questions: Sequence[str] = ("What is the weather like?", "How is the weather?", "Describe the weather.")
        return Exchange(worded(rng, questions, (f"the weather is {named}", f"it is {named}", sky)))
    asked = scene.weather if rng.random() < 0.5 else rng.choice(WEATHERS)
    questions = {
        "clear": ("Is the sky clear?", "Is the weather clear?"),
        "cloudy": ("Is it cloudy?", "Is the sky cloudy?"),
        "rainy": ("Is it raining?", "Is there any rain?"),
        "snowy": ("Is it snowing?", "Is there any snow?"),
    }[asked]
    word = "yes" if asked == scene.weather else "no"
    return Exchange(
        worded(rng, questions, (f"{word}, the weather is {named}", f"{word}, {sky}", f"{word}, it is {named}"))
    )


def _time(scene: Scene, rng: random.Random) -> Exchange:
    hour = phrases.HOURS[scene.time]
    phrase = rng.choice(phrases.TIME_PHRASES[scene.time])
    if rng.random() < 0.6:
        questions: Sequence[str] = (
            "What time of day is it?",
            "At what time of day is the scene set?",
            "Is it day, evening or night?",
        )
        return Exchange(worded(rng, questions, (f"it is {hour}", f"the scene is set {phrase}")))
    asked = scene.time if rng.random() < 0.5 else rng.choice(TIMES)
    word = "yes" if asked == scene.time else "no"
    questions = (f"Is it {phrases.HOURS[asked]}?", f"Is the scene set {rng.choice(phrases.TIME_PHRASES[asked])}?")
    return Exchange(worded(rng, questions, (f"{word}, it is {hour}", f"{word}, the scene is set {phrase}")))


def _place(scene: Scene, rng: random.Random) -> Exchange:
    named = rng.choice(phrases.PLACE_NAMES[scene.place])
    mood = rng.choice(phrases.WEATHER_MOODS[scene.weather])
    in_place = rng.choice(phrases.PLACE_PHRASES[scene.place]).format(mood=mood)
    if rng.random() < 0.6:
        questions: Sequence[str] = (
            "Where are we?",
            "What kind of place is this?",
            "What place does this picture show?",
        )
        answers = (f"this picture shows {named}", f"the scene is set {in_place}", f"we are {in_place}")
        return Exchange(worded(rng, questions, answers))
    asked = scene.place if rng.random() < 0.5 else rng.choice(PLACES)
    word = "yes" if asked == scene.place else "no"
    questions = (f"Does the picture show {phrases.PLACE_NAMES[asked][0]}?", f"Is this {phrases.PLACE_NAMES[asked][0]}?")
    if asked == "mountains":
        questions = ("Does the picture show the mountains?", "Are we in the mountains?")
    answers = (
        f"{word}, the picture shows {named}",
        f"{word}, we are {in_place}",
        f"{word}, the scene is set {in_place}",
    )
    return Exchange(worded(rng, questions, answers))


FAMILIES: Final[tuple[Family, ...]] = (
    _colour, _colour, _total, _count_kind, _where, _side, _neighbour, _exists, _exists_coloured, _which_colour,
    _larger, _same_colour, _weather, _time, _place,
)  # fmt: skip
