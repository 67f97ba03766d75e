"""One running page: what its visitors share, and a race run for one of them. No tensors: races come from a backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from PIL import Image

from specllava.config import DecodingConfig
from specllava.trace import NO_DRAFT, DecodeTrace, Setting
from visual import pieces
from visual.controls import decoding_config
from visual.experiments import Experiments
from visual.lessons import Lesson
from visual.live import follow
from visual.notices import info, readable
from visual.picture import data_address
from visual.recorded import Recorded
from visual.turns import Turn, Turns, Wanted

log = logging.getLogger("specllava.page")


class Backend(Protocol):
    """What the page needs of a pair of models: ``specllava.Pair``, or a stand-in in tests."""

    @property
    def setting(self) -> Setting: ...

    def race(self, image: Image.Image, messages: str, config: DecodingConfig) -> Generator[Any]:
        """Events of both lanes, or of the target's if nobody drafts.

        Bad input raises a ``ValueError`` that a visitor can read.
        """

    def collect_race(self, events: Iterable[Any]) -> dict[str, DecodeTrace]:
        """The traces so far, by lane."""


@dataclass(frozen=True)
class Site:
    """One running page and what its visitors share: the models, the recorded races, and who is racing.

    Args:
        backend: waits for the models; raises if they could not be loaded.
        recorded: races to show before anything runs; the first is the first paint.
        toy: the pair knows the toy world, so the page offers drawn scenes.
        racing: by session, the race that a visitor wants.
        opened: a race from a file, to show before the recorded ones.
        lessons: guided examples.
        lab: waits for the models; without it the page has no lab.
    """

    backend: Callable[[], Backend]
    recorded: Sequence[Recorded] = ()
    toy: bool = True
    racing: Turns = field(default_factory=Turns)
    opened: Recorded | None = None
    lessons: Sequence[Lesson] = ()
    lab: Callable[[], Experiments] | None = None

    @property
    def first(self) -> Recorded | None:
        """What a visitor sees before anything runs."""
        return self.opened or next(iter(self.recorded), None)


def race(site: Site, turn: Turn, wanted: Wanted) -> Iterator[tuple[list[str], str]]:
    """Stream a visitor's race: ``(frames, notice)``. It ends early on stop, on error and at the deadline."""
    return readable("the race", _race(site, turn, wanted), lambda notice: ([], notice))


def _race(site: Site, turn: Turn, wanted: Wanted) -> Iterator[tuple[list[str], str]]:
    config = decoding_config(turn.values)
    if turn.picture is None:
        raise ValueError("choose a picture first")
    yield [], info("Getting ready: models, picture, question.")
    backend = site.backend()
    alone = speculation_off(backend.setting, config)
    asked = replace(config, drafter="none") if alone else config
    with closing(backend.race(turn.picture.open(), turn.question, asked)) as events:
        yield from follow(events, backend.collect_race, wanted, data_address(turn.picture.shown()), alone)


def speculation_off(setting: Setting, config: DecodingConfig) -> str | None:
    """Why only the target will run; ``None`` if somebody drafts for it."""
    if config.drafter == "none":
        return "Speculation is off because Settings say that nobody drafts."
    if config.drafter == "model" and setting.draft == NO_DRAFT:
        return (
            f"Speculation is off because the pair {setting.pair} has no draft model. Under Settings, prompt-lookup"
            " drafts without one."
        )
    return None


def races_before(others: int) -> str:
    """What a visitor reads who has to wait."""
    return f"{others} other race{'s' if others > 1 else ''} before yours; it starts by itself."


def running(site: Site) -> str:
    """What is running, once the models are there."""
    try:
        setting = site.backend().setting
    except Exception:
        log.exception("the models could not be loaded")
        return pieces.chip_value("failed", "recorded races only: the models could not be loaded")
    return pieces.chip_value("ready", f"{setting.pair} · {setting.device.upper()} · {setting.dtype}")
