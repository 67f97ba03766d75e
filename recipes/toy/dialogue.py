"""Dialogues about toy scenes, of one turn or several. In a dialogue "it" and "they" refer to what the turn just before
was about.
"""

from __future__ import annotations

import random
from typing import Final

from recipes.toy import phrases
from recipes.toy.language import (
    QuestionAnswer,
    caption,
    describe,
    enumerate_words,
    polish,
    where,
)
from recipes.toy.questions import FAMILIES, Exchange, worded
from recipes.toy.scene import Scene, Thing

SUGGESTIONS: Final[tuple[str, ...]] = (
    "Describe this image in detail.",
    "Tell me a story about this picture.",
    "How many objects are there?",
    "What is on the left?",
    "What is the weather like?",
    "What time of day is it?",
    "What kind of place is this?",
    "Is there a dog?",
    "Describe this picture like an art critic.",
)
SINGLE_DESCRIPTION, SINGLE_CAPTION, SINGLE_QUESTION = (
    0.55,
    0.08,
    0.10,
)  # shares of the samples; the rest are dialogues
DESCRIPTION_FIRST = 0.4  # how often a dialogue opens with a description
FOLLOW_UP = 0.6  # how often a turn continues with "it" or "they" where that is possible


def ask(scene: Scene, rng: random.Random) -> QuestionAnswer:
    """Return one question about the scene, of any family that applies to it."""
    return _ask(scene, rng, frozenset()).turn


def converse(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return a training sample: a single turn, or a dialogue of two to four."""
    share = rng.random()
    if share < SINGLE_DESCRIPTION:
        return (describe(scene, rng),)
    if share < SINGLE_DESCRIPTION + SINGLE_CAPTION:
        return (caption(scene, rng),)
    if share < SINGLE_DESCRIPTION + SINGLE_CAPTION + SINGLE_QUESTION:
        return (ask(scene, rng),)
    length = rng.randint(2, 4)
    turns = [describe(scene, rng)] if rng.random() < DESCRIPTION_FIRST else []
    last: Exchange | None = None
    while len(turns) < length:
        follow_up = _follow_up(scene, rng, last) if last and rng.random() < FOLLOW_UP else None
        last = follow_up or _ask(scene, rng, frozenset(turn.question for turn in turns))
        turns.append(last.turn)
    return tuple(turns)


def _ask(scene: Scene, rng: random.Random, asked: frozenset[str]) -> Exchange:
    """Return an independent question that does not occur in the dialogue yet."""
    while True:
        exchange = rng.choice(FAMILIES)(scene, rng)
        if exchange and exchange.turn.question not in asked:
            return exchange


def _follow_up(scene: Scene, rng: random.Random, last: Exchange) -> Exchange | None:
    """Return a question about the subject of the last turn, of a kind not answered there."""
    options = [sort for sort in ("colour", "where", "size") if sort not in last.stated]
    if not last.focus or not options:
        return None
    sort = rng.choice(options)
    asker = _ask_it if len(last.focus) == 1 else _ask_they
    return Exchange(asker(rng, last.focus, sort), last.focus, last.stated | {sort})


def _ask_it(rng: random.Random, focus: tuple[Thing, ...], sort: str) -> QuestionAnswer:
    thing = focus[0]
    if sort == "colour":
        answers = (f"it is {thing.colour}", f"it has a {thing.colour} colour")
        return worded(rng, ("What colour is it?", "And what colour is it?"), answers)
    if sort == "where":
        spot = where(thing, rng)
        return worded(rng, ("Where is it?", "Where exactly is it?"), (f"it is {spot}", f"you can find it {spot}"))
    size = rng.choice(phrases.SIZE_WORDS[thing.size])
    return worded(rng, ("Is it large or small?", "How big is it?"), (f"it is {size}", f"it looks {size}"))


def _ask_they(rng: random.Random, focus: tuple[Thing, ...], sort: str) -> QuestionAnswer:
    question = {
        "colour": ("What colours do they have?", "Which colours are they?"),
        "where": ("Where are they?", "Where can I find them?"),
        "size": ("Are they large or small?", "How big are they?"),
    }[sort]
    if sort == "where":
        values = [where(thing, rng) for thing in focus]
    else:
        values = [thing.colour if sort == "colour" else thing.size for thing in focus]
    return QuestionAnswer(rng.choice(question), polish(_each(values)))


def _each(values: list[str]) -> str:
    """Word the values of two objects or more, one after the other: "one is red and the other is blue"."""
    if len(set(values)) == 1:
        return f"{'both' if len(values) == 2 else 'all of them'} are {values[0]}"
    if len(values) == 2:
        return f"one is {values[0]} and the other is {values[1]}"
    return enumerate_words([f"one is {value}" for value in values])
