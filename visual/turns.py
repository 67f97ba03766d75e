"""Who waits for what: everything that computes shares one slot, and of each visitor the latest wish counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Literal, Protocol, TypeVar

from PIL import Image

Wish = Literal["on", "stopped", "left"]
Wanted = Callable[[], Wish]
Update = TypeVar("Update")


class Shown(Protocol):
    """A picture: ``open`` gives it as the models get it, ``shown`` as the visitor sees it."""

    def open(self) -> Image.Image: ...

    def shown(self) -> Image.Image: ...


@dataclass(frozen=True, eq=False)
class Turn:
    """A run that a visitor wants, with the page as it stood when they asked.

    Args:
        picture: what it is about; refused when the run begins if there is none.
        question: about the picture.
        values: of the settings, in their order.
        more: what only this kind of run is given.
        stopped: set by the visitor, who keeps what is there.
    """

    picture: Shown | None
    question: str
    values: Sequence[Any]
    more: Any = None
    stopped: Event = field(default_factory=Event)


class Turns:
    """By who asks, the run that they want or have just stopped: at most one each. Handlers share it across threads."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, Turn] = {}

    def enter(self, key: Hashable, turn: Turn) -> int:
        """Want this turn, and no longer the one before. How many others are wanted."""
        others = sum(not other.stopped.is_set() for holder, other in list(self._turns.items()) if holder != key)
        self._turns[key] = turn
        return others

    def stop(self, key: Hashable) -> bool:
        """Want to see no more of it, begun or not. Whether there was something to stop."""
        turn = self.latest(key)
        if turn is not None:
            turn.stopped.set()
        return turn is not None

    def leave(self, key: Hashable) -> None:
        """Look at something else, or be gone."""
        self._turns.pop(key, None)

    def take(self, key: Hashable, run: Callable[[Turn, Wanted], Iterator[Update]], stopped: Update) -> Iterator[Update]:
        """Run what is wanted by now, if anything, until it is over; of what was stopped before, only that is told."""
        turn = self.latest(key)
        if turn is None:
            return
        try:
            if turn.stopped.is_set():
                yield stopped
            else:
                yield from run(turn, lambda: self.wish(key, turn))
        finally:
            if self.latest(key) is turn:  # one that was asked for since stays
                self.leave(key)

    def latest(self, key: Hashable) -> Turn | None:
        """What was asked for last, if that is not over."""
        return self._turns.get(key)

    def wish(self, key: Hashable, turn: Turn | None = None) -> Wish:
        """Whether a turn shall go on, has been stopped, or was left for something else; the latest if none is given."""
        latest = self.latest(key)
        if latest is None or latest is not (turn or latest):
            return "left"
        return "stopped" if latest.stopped.is_set() else "on"
