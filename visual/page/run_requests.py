"""Requests for runs, from the click on until the run is over: which is each visitor's latest, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

from visual.page.controls import Settings
from visual.player.picture import PictureSource

RunState = Literal["on", "stopped", "left", "closed"]
RunKey = tuple[str, str]  # a session and the name of a kind of run


@dataclass(eq=False)
class RunRequest:
    """A run that a visitor requested, with the page as it stood at the click.

    Args:
        picture: to ask about; refused when the run begins if there is none.
        question: about the picture.
        settings: of decoding, by option.
        more: inputs of this kind of run only.

    ``state`` is set by :class:`RunRequests` alone: ``on`` from the click, ``stopped`` by the visitor, who keeps what is
    there, ``left`` for something else, ``closed`` by the server that is about to end.
    """

    picture: PictureSource | None
    question: str
    settings: Settings
    more: Any = None
    state: RunState = field(default="on", init=False)


class RunRequests:
    """The requests of one page that wait or run, at most one per session and kind. Handlers share it across threads."""

    def __init__(self) -> None:
        self._latest: dict[RunKey, RunRequest] = {}
        self._closed = False
        self._lock = Lock()

    def request(self, key: RunKey, request: RunRequest) -> int:
        """Put a request in place of the one before, which is left. Return how many others are waiting or running."""
        with self._lock:
            self._leave(key)
            self._latest[key] = request
            if self._closed:
                request.state = "closed"
            return sum(other.state == "on" for holder, other in self._latest.items() if holder != key)

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
            for key in [key for key in self._latest if key[0] == session]:
                self._leave(key)

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
