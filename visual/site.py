"""One running page: what its visitors share, and a race run for one of them. No tensors: races come from a backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gradio as gr
from PIL import Image

from specllava.config import DecodingConfig
from specllava.trace import NO_DRAFT, DecodeTrace, Setting
from visual import pieces
from visual.controls import decoding_config
from visual.experiments import Experiments
from visual.lab import Shown
from visual.lessons import Lesson
from visual.live import follow
from visual.notices import info, readable
from visual.picture import data_address
from visual.recorded import Recorded

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
    """One running page and what its visitors share: the models, the recorded races, and the list of who is racing.

    Args:
        backend: waits for the models; raises if they could not be loaded.
        recorded: races to show before anything runs; the first is the first paint.
        toy: the pair knows the toy world, so the page offers drawn scenes.
        racing: sessions whose race is wanted; a session that leaves the set stops at its next step.
        opened: a race from a file, to show before the recorded ones.
        lessons: guided examples.
        lab: waits for the models; without it the page has no lab.
    """

    backend: Callable[[], Backend]
    recorded: Sequence[Recorded] = ()
    toy: bool = True
    racing: set[str] = field(default_factory=set)
    opened: Recorded | None = None
    lessons: Sequence[Lesson] = ()
    lab: Callable[[], Experiments] | None = None

    @property
    def first(self) -> Recorded | None:
        """What a visitor sees before anything runs."""
        return self.opened or next(iter(self.recorded), None)


def race(
    site: Site, picture: Shown | None, question: str, values: Sequence[Any], session: str
) -> Iterator[tuple[list[str], str]]:
    """Stream a race to one visitor: ``(frames, notice)``. It ends early on stop, on error and at the deadline."""
    return readable("the race", _race(site, picture, question, values, session), lambda notice: ([], notice))


def _race(
    site: Site, picture: Shown | None, question: str, values: Sequence[Any], session: str
) -> Iterator[tuple[list[str], str]]:
    stream: Generator[Any] | None = None
    try:
        if session not in site.racing:
            return
        config = decoding_config(values)
        if picture is None:
            raise ValueError("choose a picture first")
        yield [], info("Getting ready: models, picture, question.")
        backend = site.backend()
        alone = speculation_off(backend.setting, config)
        stream = backend.race(picture.open(), question, replace(config, drafter="none") if alone else config)
        drawn = data_address(picture.shown())
        yield from follow(stream, backend.collect_race, lambda: session not in site.racing, drawn, alone)
    finally:
        if stream is not None:
            stream.close()
        site.racing.discard(session)


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


def enter(site: Site, session: str) -> tuple[Any, Any, str]:
    """A visitor wants to race: swap Run for Stop, and say so if others come first."""
    others = len(site.racing - {session})
    site.racing.add(session)
    waiting = f"{others} other race{'s' if others > 1 else ''} before yours; it starts by itself." if others else ""
    return gr.update(interactive=False), gr.update(interactive=True), info(waiting)


def running(site: Site) -> str:
    """What is running, once the models are there."""
    try:
        setting = site.backend().setting
    except Exception:
        log.exception("the models could not be loaded")
        return pieces.chip_value("failed", "recorded races only: the models could not be loaded")
    return pieces.chip_value("ready", f"{setting.pair} · {setting.device.upper()} · {setting.dtype}")
