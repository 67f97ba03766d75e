"""Evaluation of the toy target's answers to questions; every true answer is enumerated by the question's family."""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from recipes.toy.answers import Asked, answer_all
from recipes.toy.dialogue import inquire
from recipes.toy.evaluate import EVALUATION_START
from recipes.toy.language import with_articles
from recipes.toy.parsed_text import PLACE_WORDS, TIME_WORDS, WEATHER_WORDS
from recipes.toy.phrases import COLUMN_WORDS, PLURALS, ROW_WORDS, SIZE_WORDS
from recipes.toy.questions import CANNOT_KNOW, FAMILIES, STRANGE, Query
from recipes.toy.scene import COLOURS, KINDS, Scene, Split, scenes
from recipes.toy.typed_questions import STRANGE_TYPED, TYPED, UNKNOWABLE
from recipes.toy.wordings import worded

EACH = 4  # questions about a scene, of different families
TURNS = 3  # of a dialogue
_FAMILIES: Final = tuple(dict.fromkeys(FAMILIES))
_TELLING: Final = {
    word: word for word in (*COLOURS, *KINDS, *PLACE_WORDS, *WEATHER_WORDS, *TIME_WORDS, *(
        word for table in (COLUMN_WORDS, ROW_WORDS, SIZE_WORDS) for words in table.values() for word in words))
} | {plural: kind for kind, plural in PLURALS.items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """A question with its true answers; ``measure`` and ``form`` are what it counts for."""

    measure: str
    form: str
    asked: Asked
    answers: tuple[str, ...]


def trials(split: Split, count: int) -> Iterator[Trial]:
    """Yield the questions about ``count`` scenes that no training reaches."""
    for number, scene in enumerate(scenes(split, EVALUATION_START, count)):
        rng = random.Random(f"specllava evaluation {number}")
        families = [_FAMILIES[(EACH * number + each) % len(_FAMILIES)] for each in range(EACH)]
        queries = [query for family in families if (query := family(scene, rng))]
        for query in queries:
            yield Trial("trained wording", query.form, Asked(scene, worded(query, rng).question), query.answers)
        for query in (one for one in queries if one.form in TYPED):
            yield Trial("typed wording", query.form, Asked(scene, typed(query, rng)), query.answers)
        thing = rng.choice(scene.things)
        unknowable = UNKNOWABLE[number % len(UNKNOWABLE)].format(kind=thing.kind, colour=thing.colour)
        yield Trial("not in the picture", "unknowable", Asked(scene, unknowable), CANNOT_KNOW)
        yield from later_turns(scene, rng)


def typed(query: Query, rng: random.Random) -> str:
    """Put a question into words as people type them."""
    slots = dict(query.slots)
    if slots.get("kind") in STRANGE:
        noun = rng.choice(STRANGE_TYPED)
        slots |= {"kind": noun, "kinds": f"{noun}s"}
    return with_articles(rng.choice(TYPED[query.form]).format(**slots))


def later_turns(scene: Scene, rng: random.Random) -> Iterator[Trial]:
    """Yield the later questions of a dialogue that have no telling word in common with the text before them."""
    asked = inquire(scene, rng, TURNS)
    for number, (query, turn) in list(enumerate(asked))[1:]:
        history = tuple(before for _, before in asked[:number])
        told = telling_words(" ".join(f"{before.question} {before.answer}" for before in history))
        own = set.intersection(*map(telling_words, query.answers)) | telling_words(turn.question)
        if not own & told:
            yield Trial("later turn", query.form, Asked(scene, turn.question, history), query.answers)


def telling_words(text: str) -> set[str]:
    """Return the words of a text that say something of a picture; plurals as singulars."""
    return {_TELLING[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _TELLING}


def evaluate_questions(target: Any, processor: Any, split: Split, count: int) -> dict[str, Any]:
    """Answer the questions about ``count`` scenes; return counts by measure and form, and what was wrong."""
    tried = list(trials(split, count))
    texts = answer_all(target, processor, [trial.asked for trial in tried], f"answering, {split}")
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    wrong = []
    for trial, text in zip(tried, texts, strict=True):
        right = text in trial.answers
        for form in (trial.form, "all"):
            counts[trial.measure][form][0] += right
            counts[trial.measure][form][1] += 1
        if not right:
            wrong.append({"measure": trial.measure, "form": trial.form, "scene": trial.asked.scene.seed,
                          "question": trial.asked.question, "answer": text, "true": trial.answers[0]})  # fmt: skip
    return {"split": split, "scenes": count, "counts": counts, "wrong": wrong}


def rates(result: dict[str, Any]) -> dict[str, str]:
    """Return the rates with intervals of every measure, and of every form of those with more than one."""
    shown = {}
    for measure, forms in result["counts"].items():
        for form in ("all", *sorted(form for form in forms if form != "all" and len(forms) > 2)):
            right, total = forms[form]
            low, high = wilson(right, total)
            shown[f"{measure}: {form}"] = f"{right} of {total}, {right / total:.3f} ({low:.3f} to {high:.3f})"
    return shown


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson, 1927)."""
    rate, squared = right / total, z * z / total
    half = z * math.sqrt(rate * (1 - rate) / total + squared / total / 4)
    return (rate + squared / 2 - half) / (1 + squared), (rate + squared / 2 + half) / (1 + squared)
