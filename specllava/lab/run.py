"""Decode one lane of an experiment so that its consumer gets control after every decode step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice
from typing import TypeVar

from specllava.trace import DecodeTrace
from specllava.pair import Pair
from specllava.spec_decode.loop import Event, Lane, stream

Finding = TypeVar("Finding")


def run_lane(
    pair: Pair, lane: Lane, so_far: Finding, max_steps: int | None = None
) -> Generator[Finding, None, DecodeTrace]:
    """Decode a lane, yield ``so_far`` after its prefill and after each step, and return its trace.

    Each yield is a heartbeat that lets a consumer close the experiment there.

    Args:
        so_far: the finding to yield, the same object each time.
        max_steps: end after so many steps; without it the lane is decoded to its end.
    """
    items: list[Event] = []
    with closing(stream(pair.request(lane))) as events:
        for item in islice(events, None if max_steps is None else 1 + max_steps):
            items.append(item)
            yield so_far
    return pair.collect(lane, items)
