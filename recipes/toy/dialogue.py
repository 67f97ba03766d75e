"""Dialogues about toy scenes, of one turn or several. In a dialogue "it" and "they" refer to what the turn just before
was about.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from recipes.toy.language import QuestionAnswer, caption, describe, polish
from recipes.toy.phrases import DETAIL_PROMPTS, read_wordings
from recipes.toy.questions import FAMILIES, LOOKS, Family, Query, look_up, looks_of
from recipes.toy.scene import Scene
from recipes.toy.wordings import inform, worded

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
SINGLE_DESCRIPTION, SINGLE_CAPTION, SINGLE_QUESTION = 0.45, 0.06, 0.22  # shares of the samples; the rest are dialogues
DESCRIPTION_FIRST = 0.25  # how often a dialogue opens with a description
FOLLOW_UP = 0.5  # how often a turn continues with "it" or "they" where that is possible
LOOK_UPS = 3  # in a row
TYPED_DESCRIPTION = 0.2  # share of the plain requests for a description that are varied
CHOICES = 3  # questions of which a demanding one is asked


def draw_query(scene: Scene, rng: random.Random, families: tuple[Family, ...] = FAMILIES) -> Query:
    """Draw a question of any family that applies to the scene."""
    while (query := rng.choice(families)(scene, rng)) is None:
        pass
    return query


def draw_demanding(scene: Scene, rng: random.Random) -> Query:
    """Draw :data:`CHOICES` questions; return the first about a kind or colour of several objects, else the first."""
    looks = [look for thing in scene.things for look in thing.combination]
    several = {look for look in looks if looks.count(look) > 1}
    drawn = [draw_query(scene, rng) for _ in range(CHOICES)]
    demanding = (query for query in drawn if any(look in " ".join(query.slots.values()) for look in several))
    return next(demanding, drawn[0])


def ask(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return one question about the scene."""
    return (worded(draw_demanding(scene, rng), rng),)


def describe_as_typed(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return a description; a plain request for it is sometimes varied."""
    turn = describe(scene, rng)
    if turn.question in DETAIL_PROMPTS and rng.random() < TYPED_DESCRIPTION:
        turn = replace(turn, question=inform(rng.choice(read_wordings()["training"]["describe"]), rng))
    return (turn,)


def look_ups(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return bare look-ups of several kinds."""
    queries = {query.slots["kind"]: query for query in (look_up(scene, rng) for _ in range(LOOK_UPS))}
    return tuple(worded(query, rng) for query in queries.values())


def converse(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return a training sample: a single turn, or a dialogue of two to four."""
    share = rng.random()
    if share < SINGLE_DESCRIPTION:
        return (describe(scene, rng),)
    if share < SINGLE_DESCRIPTION + SINGLE_CAPTION:
        return (caption(scene, rng),)
    if share < SINGLE_DESCRIPTION + SINGLE_CAPTION + SINGLE_QUESTION:
        return ask(scene, rng)
    return discuss(scene, rng)


def discuss(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return a dialogue of two to four turns."""
    turns = [describe(scene, rng)] if rng.random() < DESCRIPTION_FIRST else []
    return (*turns, *(turn for _, turn in inquire(scene, rng, rng.randint(2, 4) - len(turns), draw_demanding)))


def inquire(
    scene: Scene, rng: random.Random, length: int, draw: Callable[[Scene, random.Random], Query] = draw_query
) -> list[tuple[Query, QuestionAnswer]]:
    """Return different questions in a row, some of them about the object of the one before."""
    asked: list[tuple[Query, QuestionAnswer]] = []
    stated: frozenset[str] = frozenset()
    while len(asked) < length:
        query = follow_up(asked[-1][0], stated, rng) if asked and rng.random() < FOLLOW_UP else None
        follows = query is not None
        query = query or draw(scene, rng)
        if any((query.form, query.slots) == (other.form, other.slots) for other, _ in asked) and not follows:
            continue
        turn = worded(query, rng)
        stated = _stated(query, turn) | (stated if follows else frozenset())
        asked.append((query, turn))
    return asked


def follow_up(last: Query, stated: frozenset[str], rng: random.Random) -> Query | None:
    """Return a question about the focus of the last one, for a look that is not stated yet."""
    looks = [look for look in LOOKS if look not in stated]
    if not last.focus or not looks:
        return None
    look = rng.choice(looks)
    form = f"{'it' if len(last.focus) == 1 else 'they'}_{look}"
    return Query(form, tuple(map(polish, looks_of(last.focus, look))), {}, last.focus)


def _stated(query: Query, turn: QuestionAnswer) -> frozenset[str]:
    """Return the looks of the focus that a turn states."""
    words = set(re.findall(r"[a-z]+", f"{turn.question} {turn.answer}".lower()))
    own = {"colour": "colour", "size": "size", "where": "column"}
    return frozenset(look for look, field in own.items() if words & {getattr(thing, field) for thing in query.focus})
