"""Questions about toy scenes, a function for each family: every true answer is listed, all else a function of
(scene, rng). :mod:`recipes.toy.wordings` puts the questions into words.

A question never names a held-out combination that the scene does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Final

from recipes.toy import phrases
from recipes.toy.language import enumerate_words, name, number_of, polish, step_between
from recipes.toy.phrases import NUMBERS, PLURALS
from recipes.toy.scene import COLOURS, COLUMNS, HELD_OUT, KINDS, PLACES, ROWS, TIMES, WEATHERS, Scene, Thing

ABSENT = 0.12  # how often a question asks what a kind is like that the scene lacks
UNCOMMON = 0.2  # how often a question for something absent names what no scene has
LOOKS: Final = ("colour", "where", "size")
NEIGHBOURS: Final = {"next to": "next", "behind": "behind", "in front of": "in front"}
# What no scene has, in the singular; the plural has an s.
STRANGE: Final[tuple[str, ...]] = (
    "lion", "tiger", "bear", "cow", "pig", "donkey", "rabbit", "squirrel", "hamster", "eagle", "snake", "frog", "shark",
    "whale", "spider", "monkey", "zebra", "camel", "goat", "hen", "owl", "bee", "plane", "train", "tractor", "rocket",
    "helicopter", "truck", "scooter", "man", "woman", "child", "king", "pirate", "girl", "teacher", "table", "lamp",
    "book", "phone", "guitar", "clock", "bottle", "cup", "hat", "shoe", "banana", "apple", "pizza", "sofa", "pencil",
    "bridge", "castle", "spoon", "flag", "sword", "ghost", "unicorn", "laptop", "camera", "ladder", "snowman",
)  # fmt: skip
CANNOT_KNOW: Final[tuple[str, ...]] = (
    "I cannot know that. I know only what this picture shows: things, their colours and places, weather and time.",
    "That is more than I can know. Ask me about the things in this picture, their colours and places, weather or time.",
    "I do not know. I can only tell you which things this picture shows, what colour they are and where they are.",
)


@dataclass(frozen=True, slots=True)
class Query:
    """A question without its wording.

    Args:
        form: key of the wordings.
        answers: every true answer.
        slots: words that fill a wording.
        focus: referent of "it" or "they" after this question.
    """

    form: str
    answers: tuple[str, ...]
    slots: dict[str, str] = field(default_factory=dict)
    focus: tuple[Thing, ...] = ()


Family = Callable[[Scene, random.Random], Query | None]


def _query(form: str, answers: Iterable[str], focus: Sequence[Thing] = (), /, **slots: str) -> Query:
    return Query(form, tuple(polish(answer) for answer in answers), slots, tuple(focus))


def _of_kind(scene: Scene, kind: str) -> list[Thing]:
    return [thing for thing in scene.things if thing.kind == kind]


def _kind(scene: Scene, rng: random.Random) -> str:
    """Choose a kind that the scene holds, or seldom one that it lacks."""
    there = [thing.kind for thing in scene.things]
    return rng.choice([kind for kind in KINDS if kind not in there]) if rng.random() < ABSENT else rng.choice(there)


def _missing(kind: str) -> tuple[str, ...]:
    return f"there is no {kind} here", f"there is no {kind} in this picture", f"I cannot see a {kind}"


def _seen(things: Iterable[Thing]) -> str:
    """Word objects in indefinite form, such as "a red cat and a blue bus"."""
    return enumerate_words([f"a {thing.colour} {thing.kind}" for thing in things])


def _there(things: Sequence[Thing]) -> str:
    return f"there {'is' if len(things) == 1 else 'are'} {_seen(things)}"


def _spots(thing: Thing) -> tuple[str, ...]:
    """Return the ways to say where an object is."""
    column = phrases.COLUMN_PHRASES[thing.column][0]
    return tuple(" ".join(spot) for row in phrases.ROW_PHRASES[thing.row] for spot in ((column, row), (row, column)))


def looks_of(things: Sequence[Thing], look: str) -> tuple[str, ...]:
    """Return the answers that state one look of one object or more: colour, where or size."""
    if len(things) > 1:
        values = [_spots(thing)[0] if look == "where" else getattr(thing, look) for thing in things]
        if len(values) == 2:
            return (f"one is {values[0]} and the other is {values[1]}",)
        return (enumerate_words([f"one is {value}" for value in values]),)
    (thing,) = things
    if look == "where":
        return tuple(f"{it} is {spot}" for it, spot in product(("it", f"the {thing.kind}"), _spots(thing)))
    value = getattr(thing, look)
    return f"it is {value}", f"the {thing.kind} is {value}", f"it is a {value} {thing.kind}"


def _look(look: str) -> Family:
    """Return the family that asks for the colour or size of a kind."""

    def family(scene: Scene, rng: random.Random) -> Query:
        kind = _kind(scene, rng)
        things = _of_kind(scene, kind)
        return _query(look, looks_of(things, look) if things else _missing(kind), things, kind=kind)

    return family


def _is_colour(scene: Scene, rng: random.Random) -> Query | None:
    thing = rng.choice(scene.things)
    kind, own = thing.kind, thing.colour
    asked = own if rng.random() < 0.5 else rng.choice(COLOURS)
    if len(_of_kind(scene, kind)) > 1 or (asked != own and (asked, kind) in HELD_OUT):
        return None
    word = "yes" if asked == own else "no"
    return _query("is_colour", (f"{word}, it is {own}", f"{word}, the {kind} is {own}"), (thing,), kind=kind,
                  colour=asked)  # fmt: skip


def _total(scene: Scene, rng: random.Random) -> Query:
    total = len(scene.things)
    counted = [number_of(total, noun, f"{noun}s").replace("a ", "one ", 1) for noun in phrases.COUNTED[:2]]
    there = "there is" if total == 1 else "there are"
    answers = [f"{begin} {n}" for n in counted for begin in (there, "I can see", "the picture shows", "I count")]
    return _query("total", answers, scene.things if total > 1 else ())


def _count(scene: Scene, rng: random.Random) -> Query:
    """Ask how many of a kind there are; the answer lists them before it counts."""
    kind = rng.choice(KINDS) if rng.random() < 0.35 else rng.choice(scene.things).kind
    things, plural = _of_kind(scene, kind), PLURALS[kind]
    if things:
        number = NUMBERS[len(things)]
        answers = f"I can see {_seen(things)}, so {number}", f"{_there(things)}, so {number}"
    else:
        answers = f"there are no {plural}", f"I can see no {plural}"
    return _query("count", answers, things, kind=kind, kinds=plural)


def _where(scene: Scene, rng: random.Random) -> Query | None:
    kind = _kind(scene, rng)
    things = _of_kind(scene, kind)
    if not things:
        return _query("where", _missing(kind), name=f"the {kind}")
    thing = rng.choice(things)
    known = name(scene, thing)
    if " the " in known:  # named by its position, which would reveal the answer
        return None
    answers = (f"{it} is {spot}" for it, spot in product(("it", known), _spots(thing)))
    return _query("where", answers, (thing,), name=known)


def _side(scene: Scene, rng: random.Random) -> Query:
    """Ask which objects are in a column or a row of the picture."""
    by_column = {phrases.COLUMN_PHRASES[column][0]: column for column in COLUMNS}
    by_row = {phrase: row for row in ROWS for phrase in phrases.ROW_PHRASES[row]}
    spot = rng.choice(list(by_column)) if rng.random() < 0.7 else rng.choice(list(by_row))
    things = [thing for thing in scene.things if {thing.column, thing.row} & {by_column.get(spot), by_row.get(spot)}]
    answers = (_seen(things), f"{_there(things)} {spot}") if things else (f"there is nothing {spot}", "nothing")
    return _query("side", answers, things if len(things) == 1 else (), spot=spot)


def _neighbour(scene: Scene, rng: random.Random) -> Query:
    """Ask which object is next to, behind or in front of an object; the answer first says where this object is."""
    thing = rng.choice(scene.things)
    known = name(scene, thing)
    neighbours = {side: [other for other in scene.things if other != thing and step_between(other, thing) == step]
                  for side, step in NEIGHBOURS.items()}  # fmt: skip
    taken = [side for side, things in neighbours.items() if things]
    side = rng.choice(taken) if taken and rng.random() < 0.7 else rng.choice(tuple(NEIGHBOURS))
    things = neighbours[side]
    there = _there(things) if things else "there is nothing"
    own = known if " the " not in known else f"the {thing.kind}"
    answers = [f"{own} is {spot}. {side.capitalize()} it {there}" for spot in _spots(thing)]
    return _query("neighbour", answers, things if len(things) == 1 else (), way=side, name=known)


def _exists(scene: Scene, rng: random.Random) -> Query:
    """Ask whether there is one of a kind; as often yes as no."""
    if rng.random() < 0.5:
        kind = rng.choice(scene.things).kind
        things = _of_kind(scene, kind)
        answers = (f"yes, I can see {_seen(things)}", f"yes, {_there(things)}")
        return _query("exists", answers, things, kind=kind, kinds=PLURALS[kind])
    if rng.random() < UNCOMMON:
        noun = rng.choice(STRANGE)
        answers = ("no, there is nothing like that here", "no, I can see nothing like that")
        return _query("exists", answers, kind=noun, kinds=f"{noun}s")
    kind = rng.choice([kind for kind in KINDS if not _of_kind(scene, kind)])
    return _query("exists", (f"no, there is no {kind}", f"no, I cannot see a {kind}"), kind=kind, kinds=PLURALS[kind])


def _exists_coloured(scene: Scene, rng: random.Random) -> Query:
    """Ask whether there is, say, a red cat; wrong ones are half right, and never a held-out combination."""
    thing = rng.choice(scene.things)
    present = {other.combination for other in scene.things}
    colour, kind = thing.combination
    if rng.random() < 0.5:
        answers = [f"yes, there is a {colour} {kind} {spot}" for there in scene.things for spot in _spots(there)
                   if there.combination == thing.combination]  # fmt: skip
    else:
        near = [(c, thing.kind) for c in COLOURS] + [(thing.colour, k) for k in KINDS]
        colour, kind = rng.choice([pair for pair in near if pair not in present and pair not in HELD_OUT])
        answers = [f"no, there is no {colour} {kind}", f"no, I cannot see a {colour} {kind}"]
    return _query("exists_coloured", answers, colour=colour, kind=kind, kinds=PLURALS[kind])


def _which_colour(scene: Scene, rng: random.Random) -> Query:
    """Ask which objects have a colour."""
    colour = rng.choice(COLOURS) if rng.random() < 0.3 else rng.choice(scene.things).colour
    things = [thing for thing in scene.things if thing.colour == colour]
    answers = (_seen(things), _there(things)) if things else (f"nothing is {colour}", f"there is nothing {colour}")
    return _query("which_colour", answers, things if len(things) == 1 else (), colour=colour)


def _larger(scene: Scene, rng: random.Random) -> Query | None:
    if len(scene.things) < 2:
        return None
    pair = rng.sample(scene.things, 2)
    first, second = (name(scene, thing) for thing in pair)
    names = {"first": first, "second": second}
    if pair[0].size == pair[1].size:
        return _query("larger", (f"both are {pair[0].size}", f"both of them are {pair[0].size}"), **names)
    winner, loser = (first, second) if pair[0].size == "large" else (second, first)
    if rng.random() < 0.6:
        return _query("larger", (f"{winner} is larger", f"{winner} is larger than {loser}", winner), **names)
    if winner == first:
        return _query("is_larger", (f"yes, {first} is larger", f"yes, {first} is larger than {second}"), **names)
    return _query("is_larger", (f"no, {winner} is larger", f"no, {first} is smaller than {second}"), **names)


def _same_colour(scene: Scene, rng: random.Random) -> Query | None:
    """Compare the colours of two objects, each alone of its kind: about as often equal as not.

    The answer names both colours first.
    """
    single = [thing for thing in scene.things if len(_of_kind(scene, thing.kind)) == 1]
    pairs = list(permutations(single, 2))
    if not pairs:
        return None
    equal = [pair for pair in pairs if pair[0].colour == pair[1].colour]
    if not equal and rng.random() < 0.8:
        return None
    a, b = rng.choice(equal if equal and rng.random() < 0.5 else pairs)
    answer = f"the {a.kind} is {a.colour} and the {b.kind} is {b.colour}, so {'yes' if a.colour == b.colour else 'no'}"
    return _query("same_colour", (answer,), kind=a.kind, other=b.kind)


def _weather(scene: Scene, rng: random.Random) -> Query:
    names = phrases.WEATHER_NAMES[scene.weather]
    answers = [f"{it} is {named}" for named in names for it in ("it", "the weather")]
    if rng.random() < 0.5:
        return _query("weather", answers)
    asked = scene.weather if rng.random() < 0.5 else rng.choice(WEATHERS)
    word = "yes" if asked == scene.weather else "no"
    falling = {"rainy": "raining", "snowy": "snowing"}.get(asked, asked)
    return _query("is_weather", [f"{word}, {answer}" for answer in answers], weather=asked, falling=falling)


def _time(scene: Scene, rng: random.Random) -> Query:
    answers = (f"it is {phrases.HOURS[scene.time]}", f"the scene is set {phrases.TIME_PHRASES[scene.time][0]}")
    if rng.random() < 0.5:
        return _query("time", answers)
    asked = scene.time if rng.random() < 0.5 else rng.choice(TIMES)
    word = "yes" if asked == scene.time else "no"
    slots = {"hour": phrases.HOURS[asked], "when": phrases.TIME_PHRASES[asked][0]}
    return _query("is_time", [f"{word}, {answer}" for answer in answers], **slots)


def _place(scene: Scene, rng: random.Random) -> Query:
    answers = [f"{begin} {named}" for named in phrases.PLACE_NAMES[scene.place] for begin in ("it is", "this is")]
    if scene.place == "mountains":
        answers = ["we are in the mountains", "this picture shows the mountains", *answers[2:]]
    if rng.random() < 0.5:
        return _query("place", answers)
    asked = scene.place if rng.random() < 0.5 else rng.choice(PLACES)
    word = "yes" if asked == scene.place else "no"
    return _query("is_place", [f"{word}, {answer}" for answer in answers], place=phrases.PLACE_NAMES[asked][0])


def _things(scene: Scene, rng: random.Random) -> Query:
    return _query("things", (_seen(scene.things), f"I can see {_seen(scene.things)}", _there(scene.things)))


def look_up(scene: Scene, rng: random.Random) -> Query:
    """Ask for all looks of a kind at once, without a sentence; for training alone."""
    kind = _kind(scene, rng)
    looks = [f"{thing.colour}, {thing.size}, {thing.column}, {thing.row}" for thing in _of_kind(scene, kind)]
    return Query("look_up", ("; ".join(looks) or "no",), {"kind": kind})


def _unknowable(scene: Scene, rng: random.Random) -> Query:
    """Ask what the picture cannot answer."""
    kind = rng.choice(scene.things).kind if rng.random() < 0.8 else rng.choice(KINDS)
    colour = rng.choice([colour for colour in COLOURS if (colour, kind) not in HELD_OUT])
    return Query("unknowable", CANNOT_KNOW, {"kind": kind, "kinds": PLURALS[kind], "colour": colour})


FAMILIES: Final[tuple[Family, ...]] = (
    *(_look("colour"), _look("size"), _larger) * 6, *(_count, _exists, _which_colour, _side, _things) * 5,
    *(_exists_coloured, _neighbour, _is_colour) * 3, *(_same_colour,) * 12,
    *(_weather, _time, _place, _where) * 2, *(_unknowable,) * 10, _total,
)  # fmt: skip
