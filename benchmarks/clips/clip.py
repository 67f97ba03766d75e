"""Short clips: a scene in which one object moves from cell to cell while all else stays as it is.

Each frame is a scene of its own, so it is drawn, and seen by the tower, as any picture is.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from specllava.toyworld.scene import CELLS, COLUMNS, Column, Row, Scene, Split, Thing, sample_scene

FRAMES: Final = 4
RETRY: Final = 100_000_000  # from a scene in which nothing can move to the next that is tried
Cell = tuple[Column, Row]


@dataclass(frozen=True, slots=True)
class Clip:
    """A scene and the way of one of its objects.

    Args:
        scene: the first frame.
        mover: which of its objects moves; the only one of its colour and kind.
        path: the cell of that object in each frame.
    """

    scene: Scene
    mover: int
    path: tuple[Cell, ...]

    @property
    def moving(self) -> Thing:
        """The object that moves, as it is in the first frame."""
        return self.scene.things[self.mover]

    @property
    def stops(self) -> tuple[Cell, ...]:
        """Cells of the path without the frames in which the object waits."""
        before = (None, *self.path)
        return tuple(cell for cell, last in zip(self.path, before, strict=False) if cell != last)

    def frame(self, number: int) -> Scene:
        """Return the scene at a frame, its objects in the order of every scene."""
        column, row = self.path[number]
        moved = replace(self.moving, column=column, row=row)
        things = [*self.scene.things[: self.mover], moved, *self.scene.things[self.mover + 1 :]]
        things.sort(key=lambda thing: CELLS.index((thing.column, thing.row)))
        return replace(self.scene, things=tuple(things))

    def frames(self, count: int) -> tuple[Scene, ...]:
        """Return ``count`` frames, spread evenly from the first to the last; one alone is the first."""
        last = len(self.path) - 1
        return tuple(self.frame(round(number * last / max(1, count - 1))) for number in range(count))


def sample_clip(seed: int, split: Split = "train") -> Clip:
    """Return clip number ``seed`` of a split: same seed, same clip, on every machine.

    An object goes to a free cell beside its own; then it stays there, comes back, or goes on to a third cell.
    """
    rng = random.Random(f"specllava clip {split} {seed}")
    scene, movers = sample_scene(seed, split), list[int]()
    while not (movers := _movers(scene)):
        seed += RETRY
        scene = sample_scene(seed, split)
    mover = rng.choice(movers)
    taken = {_cell(thing) for thing in scene.things}
    home = _cell(scene.things[mover])
    first = rng.choice([cell for cell in beside(home) if cell not in taken])
    further = [cell for cell in beside(first) if cell not in taken]
    goes = rng.choice(("stays", "returns", "on") if further else ("stays", "returns"))
    if goes == "stays":
        when = rng.randint(1, FRAMES - 1)
        path = [home] * when + [first] * (FRAMES - when)
    else:
        leaves, arrives = sorted(rng.sample(range(1, FRAMES), 2))
        end = home if goes == "returns" else rng.choice(further)
        path = [home] * leaves + [first] * (arrives - leaves) + [end] * (FRAMES - arrives)
    return Clip(scene, mover, tuple(path))


def beside(cell: Cell) -> tuple[Cell, ...]:
    """Return the cells that an object reaches in one move: the other row, and columns next to its own."""
    column, row = cell
    place = COLUMNS.index(column)
    return tuple(
        (c, r) for c, r in CELLS if (c == column and r != row) or (r == row and abs(COLUMNS.index(c) - place) == 1)
    )


def _cell(thing: Thing) -> Cell:
    return thing.column, thing.row


def _movers(scene: Scene) -> list[int]:
    """Return the objects whose name is theirs alone and that have a free cell beside them."""
    named = Counter(thing.combination for thing in scene.things)
    taken = {_cell(thing) for thing in scene.things}
    return [
        number for number, thing in enumerate(scene.things)
        if named[thing.combination] == 1 and not taken.issuperset(beside(_cell(thing)))
    ]  # fmt: skip
