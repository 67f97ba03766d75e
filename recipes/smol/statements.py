"""Check of free English about a toy scene against its truth, by rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recipes.toy.parsed_text import PLACE_WORDS, TIME_WORDS, WEATHER_WORDS
from recipes.toy.phrases import COLUMN_WORDS, NUMBERS, PLURALS, SIZE_WORDS
from recipes.toy.scene import COLOURS, KINDS, Scene, Thing

_SIZES: Final = {
    **{word: size for size, words in SIZE_WORDS.items() for word in words},
    "tiny": "small",
    "huge": "large",
}
_COLUMNS: Final = {word: column for column, words in COLUMN_WORDS.items() for word in words}
_SINGULAR: Final = {plural: kind for kind, plural in PLURALS.items()} | {kind: kind for kind in KINDS}
_COLOUR, _NOUN = "|".join(COLOURS), "|".join(sorted(_SINGULAR, key=len, reverse=True))
_MENTION: Final = re.compile(
    rf"(?P<before>(?:\b[a-z']+ ){{0,3}}?)\b(?:(?P<size>{'|'.join(_SIZES)}),? )?"
    rf"(?:(?P<colour>{_COLOUR}) )?(?P<noun>{_NOUN})\b"
    rf"(?:,? (?:is|was|are|were|that is)? ?(?P<predicate>{_COLOUR})\b(?! (?:{_NOUN})\b))?"
)
_NO: Final = frozenset({"no", "not", "any", "without", "cannot", "isn't", "aren't", "neither", "nor"})
NUMBER_WORDS: Final = {str(number): number for number in range(10)} | {word: n for n, word in enumerate(NUMBERS)}
_COUNTS: Final = NUMBER_WORDS | {"both": 2}
_NO_COLUMN: Final = re.compile(r"\b(?:right in front|in the (?:middle|centre) of the (?:night|day))\b")
_LOOSE_COLOUR: Final = re.compile(rf"\b(?:{_COLOUR})\b(?!,? (?:{_NOUN})\b)(?: [a-z]+)?")


@dataclass(frozen=True, slots=True)
class Mention:
    """One object as a text names it; None for what it leaves out. ``count`` is of a plural with a number."""

    kind: str
    colour: str | None
    size: str | None
    count: int | None
    negated: bool
    sentence: str

    def fits(self, scene: Scene) -> bool:
        """Check that the scene has such an object; what a text denies is not checked."""
        things = [thing for thing in scene.things if self._matches(thing)]
        if self.negated or self.count == 0:
            return True
        if self.count is not None and self.count != len(things):
            return False
        return bool(things) and self._fits_column(things)

    def _matches(self, thing: Thing) -> bool:
        asked = ((self.kind, thing.kind), (self.colour, thing.colour), (self.size, thing.size))
        return all(own is None or own == there for own, there in asked)

    def _fits_column(self, things: list[Thing]) -> bool:
        """Check the column in a sentence that names one object and one column."""
        columns = {_COLUMNS[word] for word in re.findall(r"[a-z]+", self.sentence) if word in _COLUMNS}
        alone = len(list(_MENTION.finditer(self.sentence))) == 1
        return not alone or len(columns) != 1 or any(thing.column in columns for thing in things)


def mentions(text: str) -> Iterator[Mention]:
    """Yield the objects that a text names, sentence by sentence."""
    for sentence in re.split(r"[.!?;\n]+", _NO_COLUMN.sub(" ", text.lower())):
        for match in _MENTION.finditer(sentence):
            before = match["before"].split()
            count = next((_COUNTS[word] for word in reversed(before) if word in _COUNTS), None)
            plural = match["noun"] in PLURALS.values()
            yield Mention(
                _SINGULAR[match["noun"]],
                match["colour"] or match["predicate"],
                _SIZES.get(match["size"] or ""),
                count if plural or count == 0 else None,
                bool(_NO & set(before)),
                sentence,
            )


def contradicts(scene: Scene, text: str) -> str | None:
    """Return what in a text contradicts the scene, in a few words; None where nothing does."""
    for mention in mentions(text):
        if not mention.fits(scene):
            return f"object: {mention.size or ''} {mention.colour or ''} {mention.kind}"
    lowered = text.lower()
    words = re.findall(r"[a-z']+", lowered)
    for word in words:
        if PLACE_WORDS.get(word, scene.place) != scene.place:
            return f"place: {word}"
        if WEATHER_WORDS.get(word, scene.weather) != scene.weather:
            return f"weather: {word}"
        if word != "day" and TIME_WORDS.get(word, scene.time) != scene.time:
            return f"time: {word}"
    total = re.search(r"\b(one|two|three|four|five|six|\d+) (?:object|thing|item)s?\b", lowered)
    if total and _COUNTS.get(total[1]) != len(scene.things):
        return f"count: {total[0]}"
    own = {thing.colour for thing in scene.things}
    loose = [words.split()[0] for words in loose_words(text)]
    denied = re.search(r"\b(?:nothing|anything)\b", lowered)
    strange = None if denied else next((colour for colour in loose if colour not in own), None)
    return f"colour: {strange}" if strange else None


def loose_words(text: str) -> list[str]:
    """Return the colours, each with the word after it, that belong to no object: "blue sky"."""
    return [match[0] for match in _LOOSE_COLOUR.finditer(text.lower())]
