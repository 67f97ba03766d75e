"""Mean times of bare passes over more and more tokens: *t(n)* and the cost of a draft level."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from transformers import PreTrainedModel

from specllava.bench.bare_passes import BarePasses
from specllava.bench.measured import RawPass
from specllava.bench.timed_run import Model
from specllava.pair import Pair
from specllava.runtime.timing import now

Key = tuple[Model, int, int]  # model, width, context
WIDTHS: Final[Mapping[Model, tuple[int, ...]]] = MappingProxyType(
    {"target": (1, 2, 4, 8, 16, 32), "draft": (1, 2, 4, 8)}
)
AT_ONCE: Final = 12  # passes that are timed between two prompts
LEAST: Final = 3  # times that each is timed, the first, which warms up, left out


class RawPasses:
    """Seconds of bare passes of a pair's models.

    A few are timed between prompts, in an order that is drawn: other work on the machine affects them as it does lanes.

    Args:
        contexts: columns of the KV cache before a pass, the fewest and the most that lanes will have.
    """

    def __init__(self, pair: Pair, contexts: tuple[int, int]) -> None:
        models: dict[Model, PreTrainedModel | None] = {"target": pair.target, "draft": pair.draft}
        self._passes = {
            (name, context): BarePasses(model)
            for name, model in models.items()
            for context in dict.fromkeys(contexts)
            if model is not None
        }
        self._keys: list[Key] = [(name, width, context) for name, context in self._passes for width in WIDTHS[name]]
        self._taken: defaultdict[Key, list[float]] = defaultdict(list)
        self._waiting: list[Key] = []
        self._order = random.Random(0)

    def sample(self) -> None:
        """Time a few passes once."""
        for _ in range(AT_ONCE):
            if not self._waiting:
                self._waiting = self._order.sample(self._keys, len(self._keys))
            self._time(self._waiting.pop())

    def means(self) -> tuple[RawPass, ...]:
        """Return the mean of each pass; those that were timed too seldom are timed now."""
        for _ in range(1 + LEAST):
            for key in self._keys:
                if len(self._taken[key]) <= LEAST:
                    self._time(key)
        return tuple(RawPass(*key, statistics.fmean(taken[1:])) for key, taken in sorted(self._taken.items()))

    @torch.inference_mode()
    def _time(self, key: Key) -> None:
        """Time a pass after one like it, so that the processor's caches are warm."""
        name, width, context = key
        bare = self._passes[name, context]
        for _ in range(2):
            bare.hold(context, max(WIDTHS[name]))
            run_pass = bare.ready(width, context)
            started = now(bare.device)
            run_pass()
            seconds = now(bare.device) - started
        self._taken[key].append(seconds)
