"""Races in the worker process of a ZeroGPU Space: a transport of the same events, no second loop and no second clock.

ZeroGPU lends a visitor a GPU for one call of a decorated function, which it runs in a fork of this process. What the
function is given and what it yields crosses by pickle, so it yields the events of the race, which hold no tensors;
the traces are collected here. The worker may run ahead of what is shown. It ends within a step of Stop, since closing
the events stops it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from specllava.config import DecodingConfig
from specllava.question import Messages
from specllava.trace import DecodeTrace, RunInfo
from specllava.models.images import Pictures
from visual.page.runs import OutOfTime

if TYPE_CHECKING:
    from specllava.pair import Pair

log = logging.getLogger("specllava.page")
Race = Callable[[Pictures, Messages, DecodingConfig], Generator[Any]]


@dataclass(frozen=True, slots=True)
class Grant:
    """How long a GPU is asked for. What is used is charged; what is asked for decides whether a visitor may run.

    The defaults are estimates for a target of 7 billion parameters in bfloat16, not measured on ZeroGPU.

    Args:
        start: seconds until the models have moved to the GPU and the prompt is read.
        token: seconds of a token in both lanes together.
        most: seconds that are asked for at most, less than a page lets a run go on.
    """

    start: float = 6.0
    token: float = 0.07
    most: int = 60

    def seconds(self, config: DecodingConfig) -> int:
        """Return the seconds that a race is granted."""
        return min(self.most, math.ceil(self.start + self.token * config.max_new_tokens))


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """Why the worker ended a race: an exception would reach the page as the name of its class alone."""

    reason: Literal["refused", "failed", "deadline"]
    text: str = ""


class ZeroGPUPair:
    """A pair whose races run where ZeroGPU lends a GPU; made in the thread that loaded the pair, before the launch.

    Args:
        pair: on its device.
        gpu: ``spaces.GPU``.
        grant: how long a GPU is asked for.
    """

    def __init__(self, pair: Pair, gpu: Callable[..., Any], grant: Grant | None = None) -> None:
        chosen = grant or Grant()
        self._pair, self._info = pair, pair.info
        lend = gpu(duration=lambda image, messages, config: chosen.seconds(config))
        self._race: Race = lend(_worker(pair.race, chosen))
        self._answer: Race = lend(_worker(pair.answer, chosen))

    @property
    def info(self) -> RunInfo:
        return self._info

    @property
    def sees(self) -> bool:
        return self._pair.sees

    def race(self, image: Pictures, messages: Messages, config: DecodingConfig) -> Generator[Any]:
        """Yield the events of a race as they come from the worker; closing it ends the worker's race.

        Raises:
            ValueError: bad input, or no GPU for this visitor now.
            OutOfTime: the granted time is over, or ZeroGPU took the GPU back before.
            RuntimeError: the race failed; the worker's log says why.
        """
        return self._lent(self._race, image, messages, config)

    def answer(self, image: Pictures, messages: Messages, config: DecodingConfig) -> Generator[Any]:
        """Yield the events of the one lane that answers, as :meth:`race` does those of a race."""
        return self._lent(self._answer, image, messages, config)

    def _lent(self, race: Race, image: Pictures, messages: Messages, config: DecodingConfig) -> Generator[Any]:
        begun = False
        try:
            with closing(race(image, messages, config)) as events:
                for event in events:
                    if isinstance(event, WorkerEnd):
                        _raise(event)
                    begun = True
                    yield event
        except gr.Error as refusal:  # of ZeroGPU itself: no quota, no GPU now, aborted
            line = str(refusal.message)
            raise (OutOfTime(f"ZeroGPU took the GPU back: {line}.") if begun else ValueError(line)) from refusal

    def collect_race(self, events: Iterable[Any]) -> dict[str, DecodeTrace]:
        """Collect the traces so far, by lane."""
        return self._pair.collect_race(events)


def _worker(run: Race, grant: Grant) -> Race:
    """Make the function that ZeroGPU runs in its worker. It says why it ends, and keeps to what it was granted."""

    def race(image: Pictures, messages: Messages, config: DecodingConfig) -> Generator[Any]:
        granted = grant.seconds(config)
        last = time.monotonic() + granted - grant.start  # the start is over by now
        try:
            with closing(run(image, messages, config)) as events:
                for event in events:
                    if time.monotonic() > last:
                        yield WorkerEnd("deadline", f"The GPU was lent for {granted} seconds, which are over.")
                        return
                    yield event
        except ValueError as refusal:
            yield WorkerEnd("refused", str(refusal))
        except Exception:
            log.exception("the race failed in the worker")
            yield WorkerEnd("failed")

    return race


def _raise(end: WorkerEnd) -> None:
    if end.reason == "refused":
        raise ValueError(end.text)
    if end.reason == "deadline":
        raise OutOfTime(end.text)
    raise RuntimeError("the race failed in the worker")
