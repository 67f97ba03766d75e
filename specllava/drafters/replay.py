"""Trees that a device expands ahead of the rule, by a forecast; the rule is asked afterwards, over what was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specllava.core.config import DecodingConfig
from specllava.core.growth.forecast import Forecast, Plan
from specllava.core.growth.rule import GrowthRule, TopTokens
from specllava.drafters.top_tokens import TopTokensReduction
from specllava.runtime.kv_caches import AnyEngine
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine
from specllava.runtime.padded_passes import WIDEST
from specllava.runtime.queued_verification import QueuedVerification
from specllava.runtime.tree_passes import TreePasses

MORE = 2  # levels that are worth no wait: more are expanded at once, where a tree may be deeper than expected


class MissingError(Exception):
    """Error of a node that was not forecast, or of numbers that are none."""


class TreeReplay:
    """Growth of trees from numbers that a device has computed before any was read.

    ``grow`` decides as ever; :meth:`expand` looks up what a pass would have answered. So a tree differs from one
    grown pass by pass in no decision, whatever the forecast is worth.
    """

    def __init__(
        self,
        engine: PaddedEngine | PaddedFeatureEngine,
        forecast: Forecast,
        levels: int,
        reduction: TopTokensReduction,
        verification: QueuedVerification | None,
    ) -> None:
        self._cache, self._reduction, self._forecast = engine.cache, reduction, forecast
        self._passes = engine.tree_passes(forecast, reduction)
        self._verification, self._most = verification, levels
        self._expected, self._asked = levels, 1  # that the next tree expands, that the last one did
        self._begin(0)

    def _begin(self, depth: int) -> None:
        self.columns: dict[int, int] = {}  # of each node that was asked for
        self.pass_tokens: tuple[int, ...] = ()  # of each pass that was asked for
        self._depth, self._levels = depth, 0  # that may be expanded, that the rule has asked for
        self._rows: list[list[float]] = []
        self._places: dict[int, int] = {}  # of nodes among the rows
        self._children: dict[tuple[int, int], int] = {}  # place by parent's place and token

    def begin(self, root: int, read: Callable[[TreePasses, int], None], depth: int) -> None:
        """Begin a tree. Its verification is queued too, if nothing may be below what is expanded at once.

        Args:
            read: reads and expands the root of a tree of so many levels at most.
            depth: levels that may be expanded.
        """
        self._begin(depth)
        start = self._cache.length
        self._passes.set_forecast(self._forecast)
        read(self._passes, depth)
        self.pass_tokens = (self._cache.length - start,)
        most = min(depth, self._most)
        levels = most if most - self._expected <= MORE else self._expected
        self._passes.grow(levels - 1)
        if self._verification is not None and self._verification.serves and levels == most:
            self._verification.queue(root, self._passes)
        self._fetch()

    def prepare(self, rows: int, columns: int) -> None:
        """Get ready for trees below the last of up to ``rows`` tokens, in the next ``columns``."""
        self._passes.set_forecast(self._forecast)
        self._passes.prepare(rows, columns)
        if self._verification is not None:
            self._verification.prepare(self._passes)

    def end(self) -> None:
        """Expect as many levels of the next tree as the larger of the last two expanded."""
        self._expected, self._asked = max(self._levels, self._asked), self._levels

    def expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        """Return the draft's guesses after each node, as :data:`~specllava.core.growth.grow.Expand`.

        Raises:
            MissingError: ordinary passes have to grow this tree.
        """
        width = self._passes.rows
        if self._levels * width >= len(self._rows):
            self._passes.grow(min(MORE, self._depth - self._levels))
            self._fetch()
        self._levels += 1
        asked = []
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            place = self._children.get((self._places[parent], token)) if node else 0
            if place is None:
                raise MissingError(f"node {node} was not expanded")
            self._places[node] = place
            column, _, *numbers = self._rows[place]
            self.columns[node] = int(column)
            asked.append(numbers)
        if self._levels > 1:
            self.pass_tokens += (len(nodes),)
        if self._reduction.undefined(asked):
            raise MissingError("logits that are no numbers")
        return self._reduction.decode(asked)

    def _fetch(self) -> None:
        """Read the levels that were expanded, and label the columns that they wrote."""
        width, count, cache = self._passes.rows, self._reduction.count, self._cache
        begin, written = len(self._rows), list[int]()
        rows, selected = self._passes.fetch()
        self._rows += rows
        if self._verification is not None and selected is not None:
            self._verification.set_selected(selected)
        for place in range(max(begin, width), len(self._rows)):
            column, pick, *_ = map(int, self._rows[place][:2])
            if column < cache.capacity:
                parent = (place // width - 1) * width + pick // count
                token = int(self._rows[parent][-count + pick % count])
                self._children[parent, token] = place
                written.append(token)
        cache.advance(len(written))
        cache.contents += written


def build_replay(
    engine: AnyEngine,
    rule: GrowthRule,
    config: DecodingConfig,
    reduction: TopTokensReduction | None,
    verification: QueuedVerification | None,
) -> TreeReplay | None:
    """Return a replay for a draft's engine and a rule; ``None`` where trees are grown pass by pass.

    That is so for passes of any shape, for a rule without a forecast or of wider levels than a pass has rows, and
    where the host makes guesses of logits.
    """
    forecast = rule.forecast
    if not isinstance(engine, PaddedEngine | PaddedFeatureEngine) or reduction is None or forecast is None:
        return None
    if forecast.width > WIDEST:
        return None
    levels = min(config.depth, len(forecast.levels)) if isinstance(forecast, Plan) else config.depth
    return TreeReplay(engine, forecast, levels, reduction, verification)
