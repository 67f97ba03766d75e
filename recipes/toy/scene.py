"""Content of a toy scene, and sampling of scenes, without pixels or words.

A scene is a place with weather and a time of day, and one to four objects. Objects are in the
cells of a 3 x 2 grid (column: left, middle, right; row: back, front), so that every statement
about position is either true or false.

Splits go by content: the combinations in ``HELD_OUT`` never occur in the text that the models are
trained on. A ``train`` scene holds none of them, a ``held-out`` scene exactly one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "cat", "dog", "horse", "duck", "car", "bus", "bicycle", "boat",
    "house", "tent", "tree", "mushroom", "umbrella", "ball", "chair", "robot",
]  # fmt: skip
Colour = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "white"]
Size = Literal["small", "large"]
Place = Literal["meadow", "beach", "desert", "forest", "city", "mountains"]
Weather = Literal["clear", "cloudy", "rainy", "snowy"]
Time = Literal["day", "sunset", "night"]
Column = Literal["left", "middle", "right"]
Row = Literal["back", "front"]
Split = Literal["train", "held-out"]

KINDS: tuple[Kind, ...] = get_args(Kind)
COLOURS: tuple[Colour, ...] = get_args(Colour)
SIZES: tuple[Size, ...] = get_args(Size)
PLACES: tuple[Place, ...] = get_args(Place)
WEATHERS: tuple[Weather, ...] = get_args(Weather)
TIMES: tuple[Time, ...] = get_args(Time)
COLUMNS: tuple[Column, ...] = get_args(Column)
ROWS: tuple[Row, ...] = get_args(Row)
CELLS: tuple[tuple[Column, Row], ...] = tuple((c, r) for c in COLUMNS for r in ROWS)

# One combination a colour, every one of another kind: each half of a pair is well known from
# training, only their combination is new.
HELD_OUT: frozenset[tuple[Colour, Kind]] = frozenset(
    {
        ("red", "duck"), ("orange", "bus"), ("yellow", "horse"), ("green", "cat"),
        ("blue", "mushroom"), ("purple", "tree"), ("pink", "robot"), ("white", "umbrella"),
    }
)  # fmt: skip

NO_SNOW: frozenset[Place] = frozenset({"beach", "desert"})
MAX_OBJECTS = 4
REPEATED_KIND = 0.25  # how often an object copies the kind of an earlier one, so that counting matters


@dataclass(frozen=True, slots=True)
class Thing:
    """One object: its kind, colour, size and grid cell. ``jitter`` in [-1, 1] moves it inside its cell."""

    kind: Kind
    colour: Colour
    size: Size
    column: Column
    row: Row
    jitter: float = 0.0

    @property
    def combination(self) -> tuple[Colour, Kind]:
        return self.colour, self.kind

    @property
    def cell(self) -> tuple[Column, Row]:
        return self.column, self.row


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole scene. ``things`` are ordered left to right, back before front; ``seed`` varies the drawing's details."""

    place: Place
    weather: Weather
    time: Time
    things: tuple[Thing, ...]
    seed: int = 0

    @property
    def count(self) -> int:
        return len(self.things)


def sample_scene(seed: int, split: Split = "train") -> Scene:
    """Return scene number ``seed`` of a split: same seed, same scene, on every machine."""
    rng = random.Random(f"specllava scene {split} {seed}")
    place = rng.choice(PLACES)
    weathers = [w for w in WEATHERS if not (w == "snowy" and place in NO_SNOW)]
    cells = sorted(rng.sample(range(len(CELLS)), rng.randint(1, MAX_OBJECTS)))
    novel = rng.choice(cells) if split == "held-out" else None
    things: list[Thing] = []
    for cell in cells:
        column, row = CELLS[cell]
        if cell == novel:
            colour, kind = rng.choice(sorted(HELD_OUT))
        else:
            colour, kind = _known_combination(rng, [thing.kind for thing in things])
        things.append(Thing(kind, colour, rng.choice(SIZES), column, row, round(rng.uniform(-1, 1), 3)))
    return Scene(place, rng.choice(weathers), rng.choice(TIMES), tuple(things), seed)


def sample_any_scene(seed: int) -> Scene:
    """Sample a scene regardless of the split, for stages that learn what patches show.

    Half of them have an object in every cell, of any colour and kind, for more labels in one picture.
    """
    if seed % 2 == 0:
        return sample_scene(seed, "held-out")
    rng = random.Random(f"specllava crowd {seed}")
    place = rng.choice(PLACES)
    weathers = [w for w in WEATHERS if not (w == "snowy" and place in NO_SNOW)]
    things = tuple(
        Thing(rng.choice(KINDS), rng.choice(COLOURS), rng.choice(SIZES), column, row, round(rng.uniform(-1, 1), 3))
        for column, row in CELLS
    )
    return Scene(place, rng.choice(weathers), rng.choice(TIMES), things, seed)


def scenes(split: Split, start: int, count: int) -> Iterator[Scene]:
    """Yield ``count`` scenes of a split, from number ``start`` on."""
    return (sample_scene(seed, split) for seed in range(start, start + count))


def _known_combination(rng: random.Random, earlier: list[Kind]) -> tuple[Colour, Kind]:
    while True:
        kind = rng.choice(earlier) if earlier and rng.random() < REPEATED_KIND else rng.choice(KINDS)
        colour = rng.choice(COLOURS)
        if (colour, kind) not in HELD_OUT:
            return colour, kind
