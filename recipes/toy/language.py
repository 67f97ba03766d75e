"""Descriptions and captions of toy scenes: grammatical English, every statement true of the scene.

A description names place, weather, time of day and the number of objects. It introduces every object once in indefinite
form with its colour; later mentions are definite ("the red cat"), so that ``parsed_text`` can count. Everything is a
function of (scene, rng). Wording depends mostly on the content of the scene, so that a model of the scene can predict
it; the rest is random.
"""

from __future__ import annotations

import random
import re
from collections import Counter, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from recipes.toy import phrases
from recipes.toy.phrases import DETAIL_PROMPTS, NUMBERS, PLURALS, Style, read_wordings
from recipes.toy.scene import COLOURS, COLUMNS, KINDS, PLACES, ROWS, TIMES, WEATHERS, Scene, Thing

Option = TypeVar("Option")

LEANING = 0.75  # how often the scene determines a wording, which is otherwise random
PLAIN_STYLES = ("inventory", "guide", "critic")  # of a description that no style was asked for
PLAIN_PROMPTS = 0.6  # how often the question for a description names no style
MAX_WORDS = 96
MIN_WORDS = 38
SHORTER_DRAWS = 4  # how many wordings of four objects to choose the shortest from, where they run too long


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """One question about the image and its answer."""

    question: str
    answer: str


def describe(scene: Scene, rng: random.Random) -> QuestionAnswer:
    """Return a detailed description of the whole scene."""
    styles: dict[str, Style] = read_wordings()["styles"]
    if rng.random() < PLAIN_PROMPTS:
        prompt = rng.choice(DETAIL_PROMPTS)
        plain = [styles[name] for name in PLAIN_STYLES]
        style = _lean(rng, plain, PLACES.index(scene.place) + 2 * TIMES.index(scene.time))
    else:
        style = rng.choice([*styles.values()])
        prompt = rng.choice(style["prompts"])
    return QuestionAnswer(prompt, _Writer(scene, rng, style).write())


def caption(scene: Scene, rng: random.Random) -> QuestionAnswer:
    """Return one short sentence that introduces every object."""
    groups = Counter(thing.combination for thing in scene.things)
    parts = [number_of(count, f"{colour} {kind}", f"{colour} {PLURALS[kind]}")
             for (colour, kind), count in groups.items()]  # fmt: skip
    mood = rng.choice(phrases.WEATHER_MOODS[scene.weather])
    tail = [rng.choice(phrases.PLACE_PHRASES[scene.place]).format(mood=mood)]
    hour = phrases.HOURS[scene.time]
    weather = rng.choice(phrases.WEATHER_PHRASES[scene.weather])
    if rng.random() < 0.5:
        tail.append(weather.format(hour=hour))
    if rng.random() < 0.5 and hour not in tail[-1].split():
        tail.append(rng.choice(phrases.TIME_PHRASES[scene.time]))
    template = _lean(rng, phrases.CAPTIONS, PLACES.index(scene.place))
    prompt = rng.choice(phrases.CAPTION_PROMPTS)
    return QuestionAnswer(prompt, polish(template.format(things=enumerate_words(parts), tail=" ".join(tail))))


def enumerate_words(parts: Sequence[str]) -> str:
    """Join words as "x", "x and y" or "x, y and z"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def number_of(count: int, singular: str, plural: str) -> str:
    """Word a count as "a cat", "two cats" or "no cats"."""
    return f"a {singular}" if count == 1 else f"{NUMBERS[count]} {plural}"


_COMMAS = re.compile(r",(?=[.!?:,;])")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def polish(sentence: str) -> str:
    """Make a sentence from a filled template: capital, full stop, "an" before vowels, no comma before a stop."""
    if sentence[-1] not in ".!?":
        sentence += "."
    return with_articles(_COMMAS.sub("", sentence[0].upper() + sentence[1:]))


def with_articles(sentence: str) -> str:
    """Put "an" in place of "a" before vowels."""
    return _ARTICLE.sub(r"\1n ", sentence)


def where(thing: Thing, rng: random.Random) -> str:
    """Word the position of an object in the picture, such as "on the left at the front"."""
    column = rng.choice(phrases.COLUMN_PHRASES[thing.column])
    row = rng.choice(phrases.ROW_PHRASES[thing.row])
    return f"{column} {row}" if rng.random() < 0.5 else f"{row} {column}"


def name(scene: Scene, thing: Thing) -> str:
    """Return a definite name that fits only this object: with its colour, its size or its position where needed."""
    kindred = [other for other in scene.things if other.kind == thing.kind and other != thing]
    if not kindred:
        return f"the {thing.kind}"
    twins = [other for other in kindred if other.colour == thing.colour]
    if not twins:
        return f"the {thing.colour} {thing.kind}"
    if all(other.size != thing.size for other in twins):
        return f"the {thing.size} {thing.colour} {thing.kind}"
    if all(other.column != thing.column for other in twins):
        return f"the {thing.colour} {thing.kind} {phrases.COLUMN_PHRASES[thing.column][0]}"
    if all(other.row != thing.row for other in twins):
        return f"the {thing.colour} {thing.kind} {phrases.ROW_PHRASES[thing.row][0]}"
    return (f"the {thing.colour} {thing.kind} {phrases.ROW_PHRASES[thing.row][0]} "
            f"{phrases.COLUMN_PHRASES[thing.column][0]}")  # fmt: skip


def relation(thing: Thing, other: Thing) -> tuple[str, ...]:
    """Return every true relation of the first object to the second, as verb phrases before its name."""
    relations: list[str] = []
    step = COLUMNS.index(thing.column) - COLUMNS.index(other.column)
    if step:
        relations.append("is to the left of" if step < 0 else "is to the right of")
        if abs(step) == 1 and thing.row == other.row:
            relations += ["is next to", "is right beside"]
    elif thing.row == "front":
        relations += ["is in front of", "stands in front of"]
    else:
        relations += ["is behind", "is hidden a little behind"]
    if thing.size != other.size:
        relations.append("is larger than" if thing.size == "large" else "is smaller than")
    if thing.colour == other.colour:
        relations += ["has the same colour as", "shares its colour with"]
    return tuple(relations)


def step_between(thing: Thing, before: Thing) -> str:
    """Return how one object lies from another; some ways are keys of ``phrases.STEPS``."""
    step = COLUMNS.index(thing.column) - COLUMNS.index(before.column)
    if step == 0:
        return "behind" if thing.row == "back" else "in front"
    if abs(step) == 1 and thing.row == before.row:
        return "next"
    return "right" if step > 0 else "left"


def _lean(rng: random.Random, options: Sequence[Option], fact: int) -> Option:
    """Choose mostly the option that the fact selects, else any."""
    return options[fact % len(options)] if rng.random() < LEANING else rng.choice(options)


_Looks = namedtuple("_Looks", "colour hue warmth kind sort family half")


def _looks(thing: Thing) -> _Looks:
    """Return traits of an object, each 0 or 1, that wording depends on before the object is named.

    Each trait selects one of two ways, so that only a model of the picture can predict the next one.
    """
    colour, kind = COLOURS.index(thing.colour), KINDS.index(thing.kind)
    return _Looks(*(number >> bit & 1 for number, width in ((colour, 3), (kind, 4)) for bit in range(width)))


class _Writer:
    """Writer of one description in one style."""

    def __init__(self, scene: Scene, rng: random.Random, style: Style) -> None:
        self.scene, self.rng, self.style = scene, rng, style
        self.place = PLACES.index(scene.place)
        self.weather = WEATHERS.index(scene.weather)
        self.time = TIMES.index(scene.time)
        self.first, self.last = _looks(scene.things[0]), _looks(scene.things[-1])

    def write(self) -> str:
        """Write every required part, then as many overview as there is room for."""
        layout = _lean(self.rng, self.style["layouts"], self.weather)
        parts = {"o": self.opening(), "s": self.sky(), "c": self.count(), "t": self.things()}
        if sum(len(text.split()) for text in parts.values()) > MAX_WORDS:
            parts["t"] = min((self.things() for _ in range(SHORTER_DRAWS)), key=len)
        room = MAX_WORDS - sum(len(text.split()) for text in parts.values())
        extras = {"r": self.facts(), "g": self.ground(), "e": self.closing()}
        many = len(self.scene.things) > 1
        ground = (1 + LEANING) / 2 if self.last.half else (1 - LEANING) / 2
        for key, chance in (("r", 0.9 if many else 0.3), ("g", ground), ("e", 0.35)):
            text = extras[key]
            words = len(text.split())
            short = MAX_WORDS - room < MIN_WORDS
            if text and words <= room and (short or self.rng.random() < chance):
                parts[key] = text
                room -= words
        return " ".join(parts[key] for key in layout if key in parts)

    def opening(self) -> str:
        of_weather = _lean(self.rng, phrases.WEATHER_MOODS[self.scene.weather], self.place)
        of_time = _lean(self.rng, phrases.TIME_MOODS[self.scene.time], self.place)
        mood = _lean(self.rng, (of_weather, of_time), self.first.colour)
        in_place = _lean(self.rng, phrases.PLACE_PHRASES[self.scene.place], self.last.colour).format(mood=mood)
        place = _lean(self.rng, phrases.PLACE_NAMES[self.scene.place], self.last.colour)
        template = _lean(self.rng, self.style["openings"], self.first.kind)
        return polish(template.format(in_place=in_place, place=place))

    def sky(self) -> str:
        sky = _lean(self.rng, phrases.SKIES[self.scene.weather, self.scene.time], self.last.kind)
        weather = _lean(self.rng, phrases.WEATHER_NAMES[self.scene.weather], self.last.kind)
        template = _lean(self.rng, self.style["skies"], self.first.hue)
        return polish(template.format(sky=sky, weather=weather, hour=phrases.HOURS[self.scene.time]))

    def count(self) -> str:
        total = len(self.scene.things)
        noun = _lean(self.rng, phrases.COUNTED, self.last.hue)
        n = f"{NUMBERS[total]} {noun}s" if total > 1 else f"{_lean(self.rng, ('one', 'a single'), self.time)} {noun}"
        template = _lean(self.rng, self.style["counts"], self.last.sort)
        return polish(template.format(n=n, are="are" if total > 1 else "is"))

    def ground(self) -> str:
        ground = _lean(self.rng, phrases.GROUNDS[self.scene.place, self.scene.weather], self.first.sort)
        template = _lean(self.rng, self.style["grounds"], self.weather)
        return polish(template.format(ground=ground))

    def closing(self) -> str:
        closing = _lean(self.rng, phrases.MOOD_CLOSINGS[self.scene.time], self.weather)
        return polish(_lean(self.rng, self.style["closings"], self.place).format(closing=closing))

    def things(self) -> str:
        """Introduce every object, left to right, back before front."""
        style, things = self.style, self.scene.things
        if len(things) == 1:
            return self.introduce(things[0], style["only"], "")
        sentences = []
        if self.rng.random() < 0.75:
            announced = _lean(self.rng, phrases.ORDER_PHRASES, self.time)
            sentences.append(polish(_lean(self.rng, style["orders"], self.last.warmth).format(order=announced)))
        for i, thing in enumerate(things):
            key = step_between(thing, things[i - 1]) if i else ""
            if key in phrases.STEPS and self.rng.random() < 0.25:
                step = _lean(self.rng, phrases.STEPS[key], KINDS.index(thing.kind))
                sentences.append(self.introduce(thing, style["steps"], step))
            else:
                last = i == len(things) - 1
                templates = style["last"] if last else style["following"] if i else style["first"]
                sentences.append(self.introduce(thing, templates, ""))
        return " ".join(sentences)

    def introduce(self, thing: Thing, templates: Sequence[str], step: str) -> str:
        """Write the only sentence that names an object in indefinite form.

        The way to the object depends on its own appearance, one trait for each choice.
        """
        looks = _looks(thing)
        verb, ving = _lean(self.rng, phrases.VERBS[thing.kind], looks.hue)
        template = _lean(self.rng, templates, looks.family)
        column = _lean(self.rng, phrases.COLUMN_PHRASES[thing.column], looks.warmth)
        row = _lean(self.rng, phrases.ROW_PHRASES[thing.row], looks.half)
        spot = f"{thing.row} {thing.column}"
        position = _lean(self.rng, (f"{column} {row}", f"{row} {column}"), self.place)
        a = self.noun_phrase(thing)
        return polish(template.format(a=a, verb=verb, ving=ving, where=position, spot=spot, step=step))

    def noun_phrase(self, thing: Thing) -> str:
        size = _lean(self.rng, phrases.SIZE_WORDS[thing.size], self.place)
        form = self.rng.random()
        if form < 0.82:
            return f"a {size} {thing.colour} {thing.kind}"
        if form < 0.88:
            return f"a {thing.colour} {thing.kind}"
        if form < 0.94:
            return f"a {size} {thing.kind}, {thing.colour} in colour,"
        return f"a {thing.colour} {thing.kind} of {thing.size} size"

    def facts(self) -> str:
        """Write one or two true statements about objects that have been introduced, or about free space."""
        things = self.scene.things
        facts: list[str] = []
        if len(things) > 1:
            ends = (things[0], things[-1])[:: 1 if self.place % 2 else -1]
            thing, other = ends if self.rng.random() < LEANING else self.rng.sample(things, 2)
            options = relation(thing, other)
            verb = _lean(self.rng, options, _looks(thing).colour)
            facts.append(f"{name(self.scene, thing)} {verb} {name(self.scene, other)}")
        overview = self.overview()
        if not facts:
            facts += self.rng.sample(overview, 2)  # a single object leaves two columns and a row free
        elif overview and self.rng.random() < 0.25:
            facts.append(_lean(self.rng, overview, self.place))
        ways = [_lean(self.rng, self.style["relations"], self.first.warmth + i) for i in range(len(facts))]
        return " ".join(polish(way.format(relation=fact)) for way, fact in zip(ways, facts, strict=True))

    def overview(self) -> list[str]:
        """Write statements about the whole picture."""
        things = self.scene.things
        taken = {spot for thing in things for spot in (thing.column, thing.row)}
        statements = [f"the {column} side stays empty" if column != "middle" else "the middle stays empty"
                      for column in COLUMNS if column not in taken]  # fmt: skip
        statements += [f"the {row} row is free" for row in ROWS if row not in taken]
        colours = Counter(thing.colour for thing in things)
        statements += [f"{colour} appears {'twice' if colours[colour] == 2 else 'again and again'}"
                  for colour in COLOURS if colours[colour] > 1]  # fmt: skip
        return statements
