"""Wording of the toy world: tables of phrases, and those of ``wordings.toml``.

Templates are filled with ``str.format``. They have "a" before every word ("a {mood} city"); ``language.polish``
turns it into "an" where a vowel follows. Names of places, weathers and times occur only where they are true,
so that ``parsed_text`` can rely on single words; names of kinds and colours occur in no table but those of objects.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

from recipes.toy.scene import KINDS, Column, Kind, Place, Row, Size, Time, Weather

Style = dict[str, list[str]]  # wordings of a style of description, by part; ``wordings.toml`` explains the parts

PLURALS: Final[dict[Kind, str]] = {kind: "buses" if kind == "bus" else f"{kind}s" for kind in KINDS}
NUMBERS: Final[tuple[str, ...]] = ("no", "one", "two", "three", "four")
COUNTED: Final[tuple[str, ...]] = ("thing", "object", "item", "figure")  # what a total counts, in the singular

# What each kind does, as (present, participle).
VERBS: Final[dict[Kind, tuple[tuple[str, str], ...]]] = {
    "cat": (("sits", "sitting"), ("keeps watch", "keeping watch"), ("rests", "resting")),
    "dog": (("waits", "waiting"), ("stands guard", "standing guard"), ("looks around", "looking around")),
    "horse": (("stands", "standing"), ("waits", "waiting"), ("looks around", "looking around")),
    "duck": (("rests", "resting"), ("waits", "waiting"), ("looks around", "looking around")),
    "car": (("is parked", "parked"), ("stands", "standing"), ("waits", "waiting")),
    "bus": (("stands", "standing"), ("is parked", "parked"), ("waits", "waiting")),
    "bicycle": (("leans", "leaning"), ("stands", "standing"), ("is parked", "parked")),
    "boat": (("rests", "resting"), ("lies", "lying"), ("is tied up", "tied up")),
    "house": (("stands", "standing"), ("rises", "rising"), ("offers shelter", "offering shelter")),
    "tent": (("is pitched", "pitched"), ("stands", "standing"), ("offers shelter", "offering shelter")),
    "tree": (("grows", "growing"), ("rises", "rising"), ("spreads out", "spreading out")),
    "mushroom": (("grows", "growing"), ("stands", "standing"), ("spreads out", "spreading out")),
    "umbrella": (("stands open", "standing open"), ("leans", "leaning"), ("spreads out", "spreading out")),
    "ball": (("lies", "lying"), ("rests", "resting"), ("has come to a stop", "lying still")),
    "chair": (("stands", "standing"), ("waits", "waiting"), ("sits empty", "sitting empty")),
    "robot": (("stands guard", "standing guard"), ("keeps watch", "keeping watch"), ("looks around", "looking around")),
}  # fmt: skip
SIZE_WORDS: Final[dict[Size, tuple[str, ...]]] = {
    "large": ("large", "big"),
    "small": ("small", "little"),
}

COLUMN_PHRASES: Final[dict[Column, tuple[str, ...]]] = {
    "left": ("on the left", "to the left"),
    "middle": ("in the middle", "in the centre"),
    "right": ("on the right", "to the right"),
}
ROW_PHRASES: Final[dict[Row, tuple[str, ...]]] = {
    "front": ("at the front", "in the foreground"),
    "back": ("at the back", "in the background"),
}
# The words in which a position is recognised.
COLUMN_WORDS: Final[dict[Column, tuple[str, ...]]] = {
    "left": ("left",), "middle": ("middle", "centre"), "right": ("right",),
}  # fmt: skip
ROW_WORDS: Final[dict[Row, tuple[str, ...]]] = {"front": ("front", "foreground"), "back": ("back", "background")}

# Where a new object is, relative to the one named just before it.
STEPS: Final[dict[str, tuple[str, ...]]] = {
    "in front": ("in front of it", "right in front of it"),
    "next": ("next to it", "beside it"),
}

PLACE_PHRASES: Final[dict[Place, tuple[str, ...]]] = {
    "meadow": ("in a {mood} meadow", "on a {mood} field", "in the grass of a {mood} meadow"),
    "beach": ("on a {mood} beach", "on a {mood} shore", "by the sea, on a {mood} beach"),
    "desert": ("in a {mood} desert", "among the {mood} dunes of a desert", "in the {mood} dunes"),
    "forest": ("in a {mood} forest", "in the {mood} woods", "deep in a {mood} forest"),
    "city": ("in a {mood} city", "on a {mood} city street", "in a {mood} town"),
    "mountains": ("in the {mood} mountains", "high among {mood} peaks", "in a {mood} mountain valley"),
}
PLACE_NAMES: Final[dict[Place, tuple[str, ...]]] = {
    "meadow": ("a meadow", "a field"),
    "beach": ("a beach", "a shore"),
    "desert": ("a desert",),
    "forest": ("a forest", "the woods"),
    "city": ("a city", "a town"),
    "mountains": ("the mountains", "a mountain valley"),
}
WEATHER_MOODS: Final[dict[Weather, tuple[str, ...]]] = {
    "clear": ("calm", "open", "peaceful", "bright"),
    "cloudy": ("grey", "dull", "quiet", "pale"),
    "rainy": ("wet", "damp", "gloomy", "soaked"),
    "snowy": ("frozen", "icy", "cold", "frosty"),
}
TIME_MOODS: Final[dict[Time, tuple[str, ...]]] = {
    "day": ("wide", "lively", "pleasant"),
    "sunset": ("glowing", "golden", "amber"),
    "night": ("dark", "silent", "sleepy"),
}
TIME_PHRASES: Final[dict[Time, tuple[str, ...]]] = {
    "day": ("during the day", "in full daylight", "by day"),
    "sunset": ("at sunset", "in the evening", "at dusk"),
    "night": ("at night", "in the middle of the night", "late at night"),
}
WEATHER_PHRASES: Final[dict[Weather, tuple[str, ...]]] = {
    "clear": ("under a clear sky", "in clear weather"),
    "cloudy": ("under a cloudy sky", "under heavy clouds"),
    "rainy": ("in the rain", "on a rainy {hour}"),
    "snowy": ("in the snow", "on a snowy {hour}"),
}
WEATHER_NAMES: Final[dict[Weather, tuple[str, ...]]] = {
    "clear": ("clear", "clear and dry"), "cloudy": ("cloudy", "overcast"),
    "rainy": ("rainy", "rainy and wet"), "snowy": ("snowy", "snowy and cold"),
}  # fmt: skip
HOURS: Final[dict[Time, str]] = {"day": "day", "sunset": "evening", "night": "night"}

# Each clause names the weather and the time of day.
SKIES: Final[dict[tuple[Weather, Time], tuple[str, ...]]] = {
    ("clear", "day"): (
        "it is a clear day full of warm light",
        "the sky is clear and the daylight is strong",
        "a cloudless day lies over everything",
    ),
    ("clear", "sunset"): (
        "the sunset fills a clear sky with gold",
        "a clear evening comes to its end",
        "the low sun burns in the cloudless sky of dusk",
    ),
    ("clear", "night"): (
        "the stars sparkle in a clear night sky",
        "the night is clear and full of stars",
        "a cloudless night lies over everything",
    ),
    ("cloudy", "day"): (
        "heavy clouds hang over the day",
        "it is a cloudy day without much light",
        "the day is overcast and mild",
    ),
    ("cloudy", "sunset"): (
        "clouds catch the last light of the sunset",
        "the evening sky is overcast and heavy",
        "dusk comes early under thick clouds",
    ),
    ("cloudy", "night"): (
        "thick clouds cover the night sky",
        "the night is cloudy and very still",
        "an overcast night hides all light",
    ),
    ("rainy", "day"): (
        "rain falls all through the day",
        "it is a rainy day and everything drips",
        "heavy rain falls through the daylight",
    ),
    ("rainy", "sunset"): (
        "rain falls softly through the sunset",
        "the evening is rainy and cool",
        "at dusk the rain begins to whisper",
    ),
    ("rainy", "night"): (
        "rain drums through the dark night",
        "the night is rainy and rough",
        "all night long the rain comes down",
    ),
    ("snowy", "day"): (
        "snow falls softly on this day",
        "it is a snowy day with soft light",
        "soft snow comes down in the daylight",
    ),
    ("snowy", "sunset"): (
        "snow glitters in the light of the sunset",
        "the evening is snowy and hushed",
        "at dusk the snow comes slowly down",
    ),
    ("snowy", "night"): (
        "snow falls softly through the night",
        "the night is snowy and cold",
        "all night long soft snow comes down",
    ),
}  # fmt: skip

# The appearance of the ground, which depends on the place and the weather together.
GROUNDS: Final[dict[tuple[Place, Weather], tuple[str, ...]]] = {
    ("meadow", "clear"): ("the grass looks fresh and soft", "a light wind plays in the grass"),
    ("meadow", "cloudy"): ("the grass bends in a light wind", "the grass looks dull and pale"),
    ("meadow", "rainy"): ("puddles gather in the grass", "drops fall on the soft grass"),
    ("meadow", "snowy"): ("the grass bends under its load", "the grass is icy and frozen"),
    ("beach", "clear"): ("gentle waves roll over the sand", "the sand feels warm and the sea is flat"),
    ("beach", "cloudy"): ("the sea is flat and grey", "gentle waves roll over the pale sand"),
    ("beach", "rainy"): ("the wet sand shines", "the sea is rough and the sand is heavy"),
    ("desert", "clear"): ("dry sand stretches to the horizon", "the dunes look soft and peaceful"),
    ("desert", "cloudy"): ("the dunes look flat without shadows", "the dry sand waits for a storm"),
    ("desert", "rainy"): ("the thirsty sand drinks every drop", "small streams run between the dunes"),
    ("forest", "clear"): ("light falls between the trunks", "moss and leaves cover the ground"),
    ("forest", "cloudy"): ("the trunks stand close in the dim light", "the moss looks dull and pale"),
    ("forest", "rainy"): ("drops fall from every leaf", "the moss is soft and soaked"),
    ("forest", "snowy"): ("the branches bend under their load", "the trunks are cold and icy"),
    ("city", "clear"): ("the windows gleam between tall towers", "the pavement is dry and wide"),
    ("city", "cloudy"): ("mist hides the tall towers", "the pavement looks dull and empty"),
    ("city", "rainy"): ("the wet pavement shines", "small streams run over the pavement"),
    ("city", "snowy"): ("the pavement is slippery", "the tall towers look cold"),
    ("mountains", "clear"): ("the peaks look open and peaceful", "every ridge stands out"),
    ("mountains", "cloudy"): ("mist hides the highest peaks", "the ridge lies in thick mist"),
    ("mountains", "rainy"): ("small streams run down the rocks", "the rocks are dark and slippery"),
    ("mountains", "snowy"): ("the rocks are covered with ice", "the ridge lies under the ice"),
}

MOOD_CLOSINGS: Final[dict[Time, tuple[str, ...]]] = {
    "day": ("everything feels awake", "the mood is cheerful and easy", "nobody is in a hurry"),
    "sunset": ("everything feels warm and tender", "the mood is dreamy", "soon the light will be gone"),
    "night": ("everything feels mysterious", "the mood is hushed and secret", "only silence is missing a voice"),
}

DETAIL_PROMPTS: Final[tuple[str, ...]] = (
    "Describe this image in detail.",
    "What do you see in this picture?",
    "Tell me everything about this scene.",
    "Please describe the picture.",
    "What is shown in this image?",
    "Can you describe what is happening here?",
    "Give me a detailed description of this image.",
    "Explain what is in the picture.",
)
CAPTION_PROMPTS: Final[tuple[str, ...]] = (
    "Write a short caption.",
    "Caption this image.",
    "Describe the picture in one sentence.",
    "What would be a good title for this image?",
)
CAPTIONS: Final[tuple[str, ...]] = ("{things} {tail}", "we see {things} {tail}", "look at {things} {tail}")

# Objects are named in the order in which a page is read; it is announced in one of these ways, or not at all.
ORDER_PHRASES: Final[tuple[str, ...]] = ("from left to right", "from the left to the right")


@cache
def read_wordings() -> dict[str, Any]:
    """Read ``wordings.toml``; its ``training`` and ``typed`` questions have the forms of ``questions.Query``."""
    return tomllib.loads(Path(__file__).with_name("wordings.toml").read_text(encoding="utf-8"))
