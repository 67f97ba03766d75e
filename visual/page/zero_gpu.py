"""Races where ZeroGPU lends a GPU for one call of a decorated function, which it runs in a fork of this process.

What the function is given and what it yields crosses by pickle, so it yields frames, which are strings. A dialogue's
caches would go with the worker, so every race is a question by itself. Closing the generator stops the worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from specllava.config import DecodingConfig
from specllava.trace import SPECULATIVE, TARGET_ONLY
from visual.page.run import RaceFrames, lanes_config, open_pictures
from visual.player.frames import FrameList, data_address

if TYPE_CHECKING:
    from specllava.pair import Pair

# Estimates for a target of 7 billion parameters in bfloat16, not measured on ZeroGPU.
START: Final = 6.0  # seconds until the prompt is read
TOKEN: Final = 0.07  # seconds of a token in both lanes
MOST: Final = 60  # seconds that are asked for


def granted(path: str | None, question: str, config: DecodingConfig) -> int:
    """Return the seconds for which a GPU is asked: what is asked for decides whether a visitor may run."""
    return min(MOST, math.ceil(START + TOKEN * config.max_new_tokens))


def lent_race(pair: Pair, gpu: Callable[..., Any], pixels: int) -> Callable[..., Generator[list[str]]]:
    """Return a race that runs where a GPU is lent; made in the thread that loaded the pair, before the launch."""

    def race(path: str | None, question: str, config: DecodingConfig) -> Generator[list[str]]:
        began = time.monotonic()
        chosen, absent = lanes_config(pair.info, config)
        images = open_pictures(path, pixels) if pair.sees else ()
        lanes = (TARGET_ONLY,) if absent else (TARGET_ONLY, SPECULATIVE)
        made = FrameList("live run", True, data_address(images[0]) if images else None, lanes=lanes, absent=absent)
        seconds = granted(path, question, config) - START - (time.monotonic() - began)
        events = pair.race(pair.lane(images, question, chosen).with_target_only())
        yield from RaceFrames(made, pair.collect, lambda: "on").frames(events, seconds)

    lent: Callable[..., Generator[list[str]]] = gpu(duration=granted)(race)
    return lent
