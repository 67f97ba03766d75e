"""A race that is happening, as updates for the player: bundled in time, stopped on request, never without end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from specllava.trace import DecodeTrace
from visual.notices import info, warning
from visual.player import ALONE, TOGETHER, Ending, Reel
from visual.turns import Wanted

SECONDS_PER_RUN = 120.0
SECONDS_PER_UPDATE = 0.5  # a browser on the same machine slows the lanes whenever it draws, and the longer one more
NOTES: dict[Ending, str] = {
    "finished": "",
    "stopped": info("Stopped. What is shown so far stays here."),
    "deadline": warning(f"Stopped after {SECONDS_PER_RUN:.0f} seconds. What is shown so far stays here."),
}


def follow(
    events: Iterable[Any],
    collect: Callable[[list[Any]], dict[str, DecodeTrace]],
    wanted: Wanted,
    picture: str | None = None,
    alone: str | None = None,
) -> Iterator[tuple[list[str], str]]:
    """``(frames, notice)`` while the race runs, and once when it ended, was stopped or ran out of time.

    Of a race that its visitor left for something else nothing more comes: it would take the place of what they see.

    Args:
        events: what the lanes do; only drawn from, never closed here.
        collect: the traces that events amount to so far.
        wanted: what the visitor wants, asked at every event.
        picture: what the models look at, as a data address.
        alone: only the target runs; why nobody drafts for it.
    """
    lanes = (ALONE, TOGETHER) if alone is None else (ALONE,)
    reel, seen = Reel("live run", live=True, picture=picture, lanes=lanes, absent=alone), list[Any]()
    started = shown = time.monotonic()
    ending: Ending = "finished"
    for event in events:
        seen.append(event)
        now = time.monotonic()
        wish = wanted()
        if wish == "left":
            return
        if wish == "stopped" or now - started > SECONDS_PER_RUN:
            ending = "stopped" if wish == "stopped" else "deadline"
            break
        if now - shown >= SECONDS_PER_UPDATE:
            shown = now
            yield reel.update(collect(seen)), ""
    yield reel.update(collect(seen), ending), NOTES[ending]
