"""Requests for runs, from the click on until the run is over: which is each visitor's latest, and what became of it."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Literal

from specllava.config import Limits
from visual.page.controls import Settings
from visual.page.pictures import PictureSource

RunState = Literal["on", "stopped", "left", "closed"]
RunKey = tuple[str, str]  # a session and the name of a kind of run
RECENT: Final = 16  # runs of a kind whose seconds an estimate is made of
SECONDS_TO_JOIN: Final = 5.0  # from the click until the run is in the queue; whoever takes longer is forgotten
MOST_LATE: Final = 1000  # forgotten requests whose sessions get a notice if they join the queue after all


@dataclass(eq=False)
class RunRequest:
    """A run that a visitor requested, with the page as it stood at the click.

    Args:
        picture: to ask about; refused when the run begins if there is none.
        question: about the picture.
        settings: of decoding, by option.
        more: inputs of this kind of run only.

    ``state`` is set by :class:`RunRequests` alone. It is ``on`` from the click, and ``stopped`` by the visitor, who
    keeps the result so far. It is ``left`` for something else, and ``closed`` by a server that ends. So are
    ``asked`` and ``began``: when the request was made, and when its run took its turn, in ``time.monotonic``.
    """

    picture: PictureSource | None
    question: str
    settings: Settings
    more: Any = None
    state: RunState = field(default="on", init=False)
    asked: float = field(default_factory=time.monotonic, init=False)
    began: float | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of a request in the waiting line.

    Args:
        before: runs that come first, the one that computes among them.
        seconds: until the request has its turn, if runs take as long as the latest of their kinds did; ``None`` if
            that is not known.
    """

    before: int
    seconds: float | None = None


class RunRequests:
    """The requests of one page that wait or run, at most one per session and kind. Handlers share it across threads.

    Args:
        limits: that runs are held to.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._latest: dict[RunKey, RunRequest] = {}  # in the order of the waiting line
        self._seconds: dict[str, deque[float]] = {}  # of the latest runs, by kind
        self._late: OrderedDict[RunKey, None] = OrderedDict()
        self._closed = False
        self._lock = Lock()

    def request(self, key: RunKey, request: RunRequest) -> None:
        """Replace the session's request; the one before is cancelled."""
        with self._lock:
            self._leave(key)
            self._late.pop(key, None)
            self._latest[key] = request
            if self._closed:
                request.state = "closed"

    def forget_absent(self, joined: Collection[str]) -> None:
        """Forget the requests of sessions that did not join the queue in ``SECONDS_TO_JOIN``: nobody waits for them.

        Args:
            joined: sessions with a call in the queue.
        """
        last = time.monotonic() - SECONDS_TO_JOIN
        with self._lock:
            for key, request in list(self._latest.items()):
                if request.began is None and request.asked < last and key[0] not in joined:
                    self._leave(key)
                    self._late[key] = None
            while len(self._late) > MOST_LATE:
                self._late.popitem(last=False)

    def is_late(self, key: RunKey) -> bool:
        """Return, once, whether a session's request was forgotten because the session had not joined the queue."""
        with self._lock:
            known = key in self._late
            self._late.pop(key, None)
            return known

    def begin(self, request: RunRequest) -> None:
        """Note that the run of a request has its turn."""
        request.began = time.monotonic()

    def position(self, key: RunKey, calls: Sequence[float] = ()) -> QueuePosition | None:
        """Return the position of a session's waiting request; ``None`` if none waits.

        Args:
            calls: when each call of the API that waits was made; only those before the request count.
        """
        now = time.monotonic()
        with self._lock:
            request = self._latest.get(key)
            if request is None or request.state != "on" or request.began is not None:
                return None
            keys = list(self._latest)
            before = [one for one in keys[: keys.index(key)] if self._latest[one].state == "on"]
            calls_before = sum(asked < request.asked for asked in calls)
            begun = [(kind, self._latest[session, kind].began) for session, kind in before]
            return QueuePosition(len(before) + calls_before, self._expect([*begun, *[("", None)] * calls_before], now))

    def _expect(self, begun: Sequence[tuple[str, float | None]], now: float) -> float | None:
        """Return the seconds that runs take yet, each as long as the latest of its kind did.

        ``None``: none of a kind has ended, or a run has already taken longer than its kind does.

        Args:
            begun: kind of each run, "" if it may be any, and when it began.
        """
        total = 0.0
        for kind, began in begun:
            known = [one for name, recent in self._seconds.items() if kind in ("", name) for one in recent]
            left = (sum(known) / len(known) if known else 0.0) - (0.0 if began is None else now - began)
            if left <= 0:
                return None
            total += left
        return total

    def stop(self, key: RunKey) -> bool:
        """Stop the latest request, begun or not. Return whether there was one."""
        with self._lock:
            request = self._latest.get(key)
            if request is not None:
                request.state = "stopped"
            return request is not None

    def cancel(self, key: RunKey) -> None:
        """Leave the latest request for something else."""
        with self._lock:
            self._leave(key)

    def cancel_session(self, session: str) -> None:
        """Leave all requests of a session, whose visitor is gone."""
        with self._lock:
            for key in [key for key in (*self._latest, *self._late) if key[0] == session]:
                self._leave(key)
                self._late.pop(key, None)

    def close(self) -> None:
        """Let all requests end, those that come from now on included: the server is about to end."""
        with self._lock:
            self._closed = True
            for request in self._latest.values():
                request.state = "closed"

    @property
    def empty(self) -> bool:
        """Whether no run waits or goes on."""
        return not self._latest

    def remove(self, key: RunKey, request: RunRequest) -> None:
        """Forget a request that is over; one that was made since stays."""
        with self._lock:
            if request.began is not None:
                recent = self._seconds.setdefault(key[1], deque(maxlen=RECENT))
                recent.append(time.monotonic() - request.began)
            if self._latest.get(key) is request:
                del self._latest[key]

    def latest(self, key: RunKey) -> RunRequest | None:
        """Return the last request, if that is not over."""
        return self._latest.get(key)

    def is_on(self, key: RunKey) -> bool:
        """Return whether a run is waiting or running that nobody has stopped."""
        request = self.latest(key)
        return request is not None and request.state == "on"

    def _leave(self, key: RunKey) -> None:
        request = self._latest.pop(key, None)
        if request is not None:
            request.state = "left"
