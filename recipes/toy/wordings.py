"""Wordings of questions, and their informal variation by rule: tables of ``wordings.toml``."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from typing import Final

from recipes.toy.language import QuestionAnswer, polish, with_articles
from recipes.toy.phrases import PLURALS, read_wordings
from recipes.toy.questions import STRANGE, Query
from recipes.toy.scene import COLOURS, KINDS

INFORMAL = 0.5  # share of the questions that are varied
_FAMILIAR: Final = frozenset({*KINDS, *PLURALS.values(), *COLOURS, "colour", "colours"})
_DRAWN: Final[dict[str, Callable[[random.Random], str]]] = {
    "{word}": lambda rng: rng.choice((*STRANGE, *read_wordings()["words"])),
    "{number}": lambda rng: str(rng.choice((3, 5, 7, 8, 12, 15, 26, 60, 99))),
    "{letters}": lambda rng: "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8))),
}


def worded(query: Query, rng: random.Random) -> QuestionAnswer:
    """Put a question into words, formal or informal, and choose one of its answers."""
    template = rng.choice(read_wordings()["training"][query.form])
    for slot, draw in _DRAWN.items():
        while slot in template:
            template = template.replace(slot, draw(rng), 1)
    question = template.format(**query.slots)
    question = with_articles(question) if query.form == "unknowable" else polish(question)
    return QuestionAnswer(inform(question, rng) if rng.random() < INFORMAL else question, rng.choice(query.answers))


def inform(question: str, rng: random.Random) -> str:
    """Vary a question as people type: other words, words around it, a slip, small letters, no mark."""
    tables, text = read_wordings(), question
    for word, synonyms in tables["synonyms"].items():
        if rng.random() < 0.3:
            text = re.sub(rf"\b{word}\b", rng.choice(synonyms), text, count=1, flags=re.IGNORECASE)
    mark = text[-1] if text[-1] in ".?!" else ""
    body = text.removesuffix(mark)
    if rng.random() < 0.25 and body:
        body = rng.choice(tables["beginnings"]) + body[0].lower() + body[1:]
    if rng.random() < 0.2:
        body += rng.choice(tables["endings"])
    if rng.random() < 0.15:
        body = _slip(body, rng)
    return (body if rng.random() < 0.3 else body.lower()) + (mark if rng.random() < 0.4 else "")


def _slip(text: str, rng: random.Random) -> str:
    """Drop, double or swap a letter of a word that is no kind and no colour."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 3 and word.isalpha() and word.lower() not in _FAMILIAR]
    if long:
        word = words[chosen := rng.choice(long)]
        at = rng.randrange(1, len(word) - 1)
        letter, after = word[at], word[at + 1 :]
        words[chosen] = word[:at] + rng.choice((after, letter * 2 + after, after[0] + letter + after[1:]))
    return " ".join(words)
