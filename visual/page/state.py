"""What the visitors of one running page share: the models, the recorded races, whose run is the latest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, Literal

from specllava.config import Limits
from visual.page.chats import Chats
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded

if TYPE_CHECKING:
    from specllava.pair import Pair

log = logging.getLogger("specllava.page")
RunState = Literal["on", "stopped", "left", "closed"]
MOST_SESSIONS: Final = 10_000  # whose runs are counted; those that asked longest ago are forgotten
LentRace = Callable[..., Generator[list[str]]]


@dataclass(eq=False)
class Runs:
    """Which run of each session is its latest, and whether it was stopped. Handlers share it across threads."""

    _latest: dict[str, int] = field(default_factory=dict)
    _stopped: dict[str, int] = field(default_factory=dict)
    _on: set[tuple[str, int]] = field(default_factory=set)
    _closed: bool = False
    _count: int = 0
    _lock: Lock = field(default_factory=Lock)

    def ask(self, session: str) -> int:
        """Count a run that a session asks for, which ends the one before it. Return its number."""
        with self._lock:
            self._count += 1
            self._latest.pop(session, None)
            self._latest[session] = self._count
            while len(self._latest) > MOST_SESSIONS:
                self._latest.pop(next(iter(self._latest)))
            return self._count

    def begin(self, session: str, number: int) -> None:
        """Note that a run computes."""
        with self._lock:
            self._on.add((session, number))

    def end(self, session: str, number: int) -> None:
        """Note that a run has ended, or was never begun."""
        with self._lock:
            self._on.discard((session, number))
            if self._latest.get(session) == number:
                del self._latest[session]
            self._stopped.pop(session, None)

    def stop(self, session: str) -> None:
        """Stop the run of a session; what it has so far stays."""
        with self._lock:
            if session in self._latest:
                self._stopped[session] = self._latest[session]

    def leave(self, session: str) -> None:
        """End the run of a session that wants something else, or is gone."""
        with self._lock:
            self._latest.pop(session, None)

    def close(self) -> None:
        """Stop every run: the server ends."""
        with self._lock:
            self._closed = True

    def state(self, session: str, number: int) -> RunState:
        """Return what became of a run."""
        with self._lock:
            if self._closed:
                return "closed"
            if self._stopped.get(session) == number:
                return "stopped"
            return "on" if self._latest.get(session) == number else "left"

    def is_on(self, session: str) -> bool:
        """Return whether a session waits for a run."""
        with self._lock:
            return session in self._latest

    @property
    def empty(self) -> bool:
        """Whether no run computes."""
        with self._lock:
            return not self._on


@dataclass(frozen=True)
class PageState:
    """What the visitors of one page share.

    Args:
        backend: waits for the models; raises if they could not be loaded.
        recorded: races to show before anything runs; the page opens with the first.
        lessons: guided examples.
        preset: that the page was started with; "" if it is none.
        opened: a race from a file, to show before the recorded ones.
        code: address of the project's files, for links; empty if none is known.
        drafts: the target with other drafts, by the draft's name.
        lent: runs a race where a GPU is lent for it, and yields frames; ``None``: it runs here.
        launched: set once the page is served.
    """

    backend: Callable[[], Pair]
    recorded: Sequence[Recorded] = ()
    lessons: Sequence[Lesson] = ()
    preset: str = "toy"
    opened: Recorded | None = None
    code: str = ""
    limits: Limits = field(default_factory=Limits)
    drafts: Mapping[str, Callable[[], Pair]] = field(default_factory=dict)
    lent: LentRace | None = None
    launched: Event = field(default_factory=Event)
    runs: Runs = field(default_factory=Runs)
    chats: Chats = field(default_factory=Chats)

    @property
    def first(self) -> Recorded | None:
        """The race that the page opens with."""
        return self.opened or next(iter(self.recorded), None)

    @property
    def is_toy(self) -> bool:
        """Whether the pair has seen nothing but toy scenes."""
        return self.preset.split("-")[0] in ("toy", "smol")

    @cached_property
    def races(self) -> dict[str, Recorded]:
        """The races that a visitor may open by name: examples, and those of the lessons."""
        races = {race.name: race for lesson in self.lessons for race in lesson.races}
        return races | {race.name: race for race in self.recorded}

    def pair(self, draft: str | None) -> Any:
        """Return the pair with a draft, once it is loaded.

        Raises:
            ValueError: there is no draft of that name.
        """
        if draft is None:
            return self.backend()
        if draft not in self.drafts:
            raise ValueError(f"there is no draft {draft[:40]!r}: choose one of {', '.join(self.drafts) or 'none'}")
        return self.drafts[draft]()

    @cached_property
    def loading(self) -> Future[Any]:
        """The page's own pair, once it is loaded, or why it could not be; waited for on a thread of its own."""
        thread = ThreadPoolExecutor(1, "loading")
        waited = thread.submit(self._loaded)
        thread.shutdown(wait=False)
        return waited

    def _loaded(self) -> Any:
        try:
            return self.backend()
        except Exception:
            log.exception("the models could not be loaded")
            raise
