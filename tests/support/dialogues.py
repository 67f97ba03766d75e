"""A stand-in for chats: races of the stand-in backend, one turn after the other, and caches that are a number."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace
from support.visual_traces import FakeBackend, FakeEvent
from visual.page.dialogue import TurnParts

COLUMNS = 20  # of a turn, more than the prompt before it


@dataclass(frozen=True)
class FakeTurn:
    text: str
    media: tuple[Image.Image, ...]
    trace: DecodeTrace
    alone: DecodeTrace | None = None


class FakeChat:
    """A chat whose caches take ``size`` bytes once something was asked."""

    def __init__(self, backend: FakeBackend, turns: Sequence[TurnParts] = (), size: int = 1000) -> None:
        self.turns: tuple[FakeTurn, ...] = tuple(FakeTurn(*turn) for turn in turns)
        self.nbytes = self.forgotten = 0
        self._backend, self._size = backend, size

    def forget(self) -> None:
        self.nbytes = 0
        self.forgotten += 1

    def race(
        self, text: str, image: Sequence[Image.Image], config: DecodingConfig, turn: int | None = None
    ) -> Generator[FakeEvent]:
        index = len(self.turns) if turn is None else turn
        media = [one for asked in self.turns[:index] for one in asked.media] + list(image)
        return self._events(self._backend.race(media, text, config), text, tuple(image), index)

    def _events(
        self, race: Generator[FakeEvent], text: str, media: tuple[Image.Image, ...], index: int
    ) -> Generator[FakeEvent]:
        said: list[Any] = []
        reused, self.nbytes = (COLUMNS * index if self.nbytes else 0), self._size
        try:
            for event in race:
                prefill = replace(event.whole.prefill, prompt_tokens=92 + COLUMNS * index, reused_tokens=reused)
                said.append(replace(event, whole=replace(event.whole, turn=index, prefill=prefill)))
                yield said[-1]
        finally:
            race.close()
            traces = self._backend.collect_race(said)
            if traces:
                *alone, trace = traces.values()
                self.turns = (*self.turns[:index], FakeTurn(text, media, trace, *alone))
