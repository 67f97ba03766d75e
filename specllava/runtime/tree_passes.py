"""Passes of a draft over the levels of a tree, one behind the other, before the host has read a number of any.

Scores, ancestors, columns and positions of the nodes are on the device, where each pass leaves the input of the next
one. So a level is one pass of one shape, whatever its number, and a tree needs one download.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from specllava.core.growth.forecast import Forecast, ForecastKind, Plan
from specllava.core.limits import highest
from specllava.runtime.padded_passes import PaddedPasses
from specllava.runtime.pass_shapes import Shape, Shapes
from specllava.runtime.passes import LogitsReduction, PassInput
from specllava.runtime.slab import Download

LEVELS: Final = highest("depth")


class Guesses(LogitsReduction, Protocol):
    """Interface of a reduction of logits to the likeliest next tokens."""

    @property
    def count(self) -> int:
        """Tokens of each row."""
        ...

    def split(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split numbers ``[rows, width]``: entropies ``[rows]``, log-probabilities and tokens ``[rows, count]``."""
        ...


@dataclass(frozen=True, slots=True)
class Decoder:
    """What an engine's passes compute.

    Args:
        kind: differs where ``root`` or ``level`` computes differently.
        root: reads tokens of the text, ``level`` nodes of a tree; from a shape's input to logits ``[rows, vocab]``.
        states: buffers ``[rows, hidden]`` of a draft that reads its own: those that a pass makes, those before a pass.
    """

    kind: Callable[[], Hashable]
    root: Callable[[Shape], Tensor]
    level: Callable[[Shape], Tensor]
    states: tuple[Tensor, Tensor] | None = None


class TreePasses:
    """Passes over the levels of trees, each of which expands ``rows`` nodes at most.

    A row without a node is dead: it writes a scratch column, and nothing below it is ever expanded. What a forecast
    says is data on the device, so trees of other limits are the same passes.

    Args:
        kind: of forecasts.
        rows: a bucket, see :func:`bucket_of`.
    """

    def __init__(
        self, passes: PaddedPasses, decoder: Decoder, kind: ForecastKind, rows: int, guesses: Guesses
    ) -> None:
        self.rows, self._kind, self._guesses, self._decoder = rows, kind, guesses, decoder
        self._passes, self._capacity = passes, passes.cache.capacity
        device, count = passes.cache.slab.device, guesses.count
        places = (LEVELS + 1) * rows  # a last level of no use, which a pass that runs once too often writes
        self._download = Download(places, 2 + guesses.width, device)
        self._place = torch.arange(rows, device=device)  # in a level
        self._last = self._place + LEVELS * rows
        self._scratch = self._place + self._capacity  # columns
        self._ranks = torch.arange(count, device=device)
        self._never = torch.full((), -torch.inf, dtype=torch.float64, device=device)
        self._of_root = torch.full((rows,), -torch.inf, dtype=torch.float64, device=device)
        self._of_root[0] = 0.0
        self._no_pick = torch.full((rows,), -1, device=device)
        self._forecast: Forecast | None = None
        self._plan = torch.full((places,), -1, device=device)  # picks of each level, where they are settled
        self._width = torch.zeros(1, dtype=torch.long, device=device)  # nodes of a level
        self._sure = torch.zeros(1, dtype=torch.float64, device=device)  # entropy up to which a node has one child
        self._scores = self._of_root.clone()  # of the rows of the next pass: log-probabilities of their branches
        self._picks = self._no_pick.clone()  # of each: parent's row times ``count`` plus its rank
        self._at = self._place.clone()  # of each: its place among those of all levels
        self._column = torch.zeros(1, dtype=torch.long, device=device)  # that the next node is written to
        self._shapes = Shapes(rows, self._capacity, device)  # not the root's, whose pass may be run once more
        self._level: Shape | None = None
        self._queued = self._fetched = 0

    def set_forecast(self, forecast: Forecast) -> None:
        """Set what is expanded from the next tree on; it may wait for the device."""
        if forecast == self._forecast:
            return
        self._forecast, count = forecast, self._guesses.count
        self._width.fill_(forecast.width)
        if isinstance(forecast, Plan):
            picks = torch.full((len(self._plan),), -1)
            for level, expanded in enumerate(forecast.expanded[:LEVELS]):
                for row, (place, rank) in enumerate(expanded):
                    picks[level * self.rows + row] = place * count + rank
            self._plan.copy_(picks)
        elif forecast.entropy_threshold is not None:
            self._sure.fill_(forecast.entropy_threshold)

    def begin(self, batch: PassInput, levels: int, position_offset: int = 0) -> None:
        """Read the root, the last token of ``batch``, without waiting; see :meth:`PaddedPasses.stage`.

        Args:
            levels: that are going to be expanded at most, the root's included.
        """
        assert self._forecast is not None, "set_forecast comes first"
        root = self._passes.stage(batch, position_offset, (levels - 1) * self._forecast.width)
        self._read_root(root)
        self._passes.cache.advance(len(batch.tokens))
        self._queued, self._fetched = 1, 0

    def grow(self, levels: int) -> None:
        """Expand ``levels`` more levels, without waiting."""
        assert self._level is not None, "begin comes first"
        for _ in range(levels):
            self._expand(self._level)
        self._queued += levels

    def fetch(self) -> list[list[float]]:
        """Wait for the device and return numbers of each row of the levels that were queued since the last time.

        They are a row's column, the pick that made it, and its reduced logits. A dead row has a column after the
        cache's capacity.
        """
        rows = slice(self._fetched * self.rows, self._queued * self.rows)
        self._fetched = self._queued
        return self._download.fetch(rows)

    def prepare(self, rows: int, columns: int) -> None:
        """Run what a runner may capture for trees below the last of up to ``rows`` tokens, in the next ``columns``."""

        def read_root(bucket: int, window: int) -> None:
            self._read_root(self._passes.stage_padding(bucket, window))

        def expand(width: int, window: int) -> None:
            self._expand(self._shapes.stage_padding(width, window))

        self._passes.prepare_each(self._key("root"), self._passes.buckets_of(rows), columns, read_root)
        self._passes.prepare_each(self._key("level"), [self.rows], columns, expand)

    def _key(self, part: str) -> Hashable:
        return self, part, self._decoder.kind()

    def _read_root(self, root: Shape) -> None:
        level = self._level = self._shapes.of(self.rows, root.write_slots.window)
        compute, then = partial(self._decoder.root, root), partial(self._begin, root, level)
        self._passes.run_staged(self._key("root"), root, compute, then)

    def _expand(self, level: Shape) -> None:
        compute, then = partial(self._decoder.level, level), partial(self._advance, level)
        self._passes.run_staged(self._key("level"), level, compute, then)

    def _begin(self, root: Shape, level: Shape, logits: Tensor) -> None:
        """Choose what is expanded below the root, the last row of its pass that is no padding."""
        slots = root.write_slots.slots
        last = torch.where(slots < self._capacity, slots, -1).argmax(0, keepdim=True)
        numbers = self._guesses(logits.index_select(0, last)).expand(self.rows, -1)
        column, position = slots.index_select(0, last), root.positions.index_select(0, last)
        visible = root.bits.index_select(0, last).expand(self.rows, -1)
        self._at.copy_(self._place)
        self._column.copy_(column + 1)
        self._scores.copy_(self._of_root)
        self._note(numbers, column.expand(self.rows), self._no_pick)
        self._choose(level, numbers, visible, position + 1, last.expand(self.rows))

    def _advance(self, level: Shape, logits: Tensor) -> None:
        """Choose what is expanded below a level."""
        numbers = self._guesses(logits)
        self._note(numbers, level.write_slots.slots, self._picks)
        self._choose(level, numbers, level.bits, level.positions + 1, self._place)

    def _note(self, numbers: Tensor, columns: Tensor, picks: Tensor) -> None:
        """Write what the host will read of a level; integers below 2^24 are float32 numbers."""
        noted = torch.cat([columns[:, None].float(), picks[:, None].float(), numbers], dim=1)
        self._download.device.index_copy_(0, self._at, noted)

    def _choose(
        self, level: Shape, numbers: Tensor, visible: Tensor, position: Tensor, rows: Tensor
    ) -> None:
        """Write the input of the next pass: its nodes are children of this one's.

        Args:
            visible: columns that each row of this pass attends to, ``[rows, window]``.
            position: of the next nodes in the text.
            rows: of this pass that the nodes were.
        """
        _, _, tokens = self._guesses.split(numbers)
        best, picks = self._best_children(numbers)
        alive = best > -torch.inf
        columns = self._column - 1 + alive.cumsum(0)
        alive = alive & (columns < level.write_slots.window)
        slots = torch.where(alive, columns, self._scratch)
        parents = picks.div(self._guesses.count, rounding_mode="floor")
        seen = visible.index_select(0, parents)
        seen.scatter_(1, torch.where(alive, slots, 0)[:, None], True)  # all see column 0
        level.ids[0].copy_(tokens.flatten().index_select(0, picks))
        level.positions.copy_(position.clamp(max=self._capacity - 1))
        level.write_slots.slots.copy_(slots)
        level.bits.copy_(seen)
        if self._decoder.states is not None:
            made, before = self._decoder.states
            before[: self.rows].copy_(made.index_select(0, rows.index_select(0, parents)))
        self._column.add_(alive.sum(0, keepdim=True))
        self._scores.copy_(torch.where(alive, best, self._never))
        self._picks.copy_(picks)
        self._at.copy_(torch.minimum(self._at + self.rows, self._last))

    def _best_children(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of the children that are expanded next, ``[rows]``, -inf for none, and their picks.

        Scores are added in float64 and ties go to the elder, as on the host.
        """
        entropies, log_probs, _ = self._guesses.split(numbers)
        scores = self._scores[:, None] + log_probs
        if self._kind == "plan":
            picks = self._plan.index_select(0, self._at)
            best = scores.flatten().index_select(0, picks.clamp(min=0))
            return torch.where(picks >= 0, best, self._never), picks.clamp(min=0)
        if self._kind == "branching":
            nats = entropies.double()
            choices = torch.where(nats <= self._sure, 1.0, nats.exp().ceil())
            scores = torch.where(self._ranks < choices[:, None], scores, self._never)
        ordered, order = scores.flatten().sort(descending=True, stable=True)
        best, picks = ordered[: self.rows], order[: self.rows]
        return torch.where(self._place < self._width, best, self._never), picks
