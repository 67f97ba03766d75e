"""Statements parsed from a text about a scene, for evaluation.

Exact on everything that ``language`` writes; on other texts (a model's mistakes) it parses what it can and never
raises. An object counts as introduced by an indefinite phrase ("a large red cat", "two red cats", "a cat, red in
colour"); definite phrases ("the red cat", "the cat is red") are mentions of something already known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

from recipes.toy.phrases import COUNTED, NUMBERS, PLURALS
from recipes.toy.scene import COLOURS, KINDS, Colour, Kind, Place, Time, Weather

PLACE_WORDS: Final[dict[str, Place]] = {
    "meadow": "meadow", "field": "meadow", "grass": "meadow", "beach": "beach", "shore": "beach", "sea": "beach",
    "desert": "desert", "dunes": "desert", "forest": "forest", "woods": "forest", "woodland": "forest",
    "city": "city", "town": "city", "mountains": "mountains", "mountain": "mountains", "peaks": "mountains",
}  # fmt: skip
WEATHER_WORDS: Final[dict[str, Weather]] = {
    "clear": "clear", "cloudless": "clear", "cloudy": "cloudy", "clouds": "cloudy", "overcast": "cloudy",
    "rain": "rainy", "rainy": "rainy", "raining": "rainy", "snow": "snowy", "snowy": "snowy", "snowing": "snowy",
}  # fmt: skip
TIME_WORDS: Final[dict[str, Time]] = {
    "day": "day", "daylight": "day", "daytime": "day", "sunset": "sunset", "evening": "sunset", "dusk": "sunset",
    "night": "night",
}  # fmt: skip

_COLOUR = "|".join(COLOURS)
_SINGULAR: Final[dict[str, Kind]] = {plural: kind for kind, plural in PLURALS.items()}
_KIND = "|".join((*KINDS, *_SINGULAR))
# A noun with its colour before it, after it, or as its predicate; or alone.
_NOUN = re.compile(
    rf"\b(?:(?P<before>{_COLOUR}) )?(?P<noun>{_KIND})\b"
    rf"(?:,? (?:that is |that are )?(?P<after>{_COLOUR}) in colour\b| that (?:is|are) (?P<that>{_COLOUR})\b"
    rf"| (?:is|are)(?: both| all)? (?P<said>{_COLOUR})\b)?"
)
_TOTAL = re.compile(rf"\b(one|two|three|four|single) (?:{'|'.join(COUNTED)})s?\b")
_WORD = re.compile(r"[a-z]+")
_DEFINITE = frozenset({"the", "this", "that", "these", "those", "our", "your", "its", "both"})
_NUMBERS: Final = {word: number for number, word in enumerate(NUMBERS)} | dict.fromkeys(("a", "an", "another"), 1)
_REACH = 4  # words between a determiner and its noun, at most


@dataclass(frozen=True, slots=True)
class ParsedText:
    """Statements of a text; None or () where it states nothing."""

    place: Place | None
    weather: Weather | None
    time: Time | None
    count: int | None  # the total, as stated in words
    combinations: tuple[tuple[Colour, Kind], ...]  # introductions, "two red cats" counted twice
    mentions: tuple[tuple[Colour, Kind], ...]  # definite: "the red cat", "the cat is red"
    kinds: tuple[Kind, ...]  # named without a colour


def parse_text(text: str) -> ParsedText:
    """Parse the statements of a text."""
    text = " ".join(text.lower().split())
    words = _WORD.findall(text)
    total = _TOTAL.search(text)
    combinations: list[tuple[Colour, Kind]] = []
    mentions: list[tuple[Colour, Kind]] = []
    kinds: list[Kind] = []
    for match in _NOUN.finditer(text):
        noun = match["noun"]
        kind = _SINGULAR.get(noun) or cast(Kind, noun)
        colour = match["before"] or match["after"] or match["that"] or match["said"]
        number = _introduced(text[: match.start()])
        if colour is None:
            kinds.append(kind)
        elif number is None or (match["said"] and not match["before"]):
            mentions.append((cast(Colour, colour), kind))
        else:
            combinations += [(cast(Colour, colour), kind)] * number
    return ParsedText(
        place=next((PLACE_WORDS[word] for word in words if word in PLACE_WORDS), None),
        weather=next((WEATHER_WORDS[word] for word in words if word in WEATHER_WORDS), None),
        time=next((TIME_WORDS[word] for word in words if word in TIME_WORDS), None),
        count=_NUMBERS.get(total[1], 1) if total else None,
        combinations=tuple(combinations),
        mentions=tuple(mentions),
        kinds=tuple(kinds),
    )


def _introduced(before: str) -> int | None:
    """Return how many objects the determiner at the end of a text introduces; None where it is a definite one."""
    clause = re.split(r"[.,:;!?]", before[-60:])[-1]
    for word in reversed(_WORD.findall(clause)[-_REACH:]):
        if word in _DEFINITE:
            return None
        if word in _NUMBERS:
            return _NUMBERS[word]
    return 1
