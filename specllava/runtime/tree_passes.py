"""Passes of a draft over the levels of a tree, one after the other, before the host has read a number of any.

Scores, ancestors, columns and positions of the nodes are on the device, where each pass leaves the input of the next
one. So a level is one pass of one shape, whatever its number, and a tree needs one download.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from specllava.core.growth.forecast import Forecast, ForecastKind, Plan
from specllava.core.limits import highest
from specllava.runtime.padded_passes import WIDEST, PaddedPasses
from specllava.runtime.pass_shapes import Shape, Shapes
from specllava.runtime.passes import Guesses, PassInput
from specllava.runtime.slab import Download

LEVELS: Final = highest("depth")


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

    def __init__(self, passes: PaddedPasses, decoder: Decoder, kind: ForecastKind, rows: int, guesses: Guesses) -> None:
        self.rows, self._kind, self._guesses, self._decoder = rows, kind, guesses, decoder
        self._passes, self._capacity = passes, passes.cache.capacity
        device, count = passes.cache.slab.device, guesses.count
        places = (LEVELS + 1) * rows  # a last level of no use, which a pass that runs once too often writes
        self._download = Download(WIDEST + places, 2 + guesses.width, device)  # of what was selected, of each row
        self._table = self._download.device[WIDEST:]
        self._children = torch.full((places + WIDEST, count), -torch.inf, dtype=torch.float64, device=device)  # scores
        self._eye = torch.eye(WIDEST, device=device)
        self._number = torch.arange(WIDEST, device=device)
        self._place = torch.arange(rows, device=device)  # in a level
        self._last = self._place + LEVELS * rows
        self._scratch = self._place + self._capacity  # columns
        self._ranks = torch.arange(count, device=device)
        self._of_root = torch.full((rows,), -torch.inf, dtype=torch.float64, device=device)
        self._of_root[0] = 0.0
        self._no_pick = torch.full((rows,), -1, device=device)
        self._forecast: Forecast | None = None
        self._plan = torch.full((places,), -1, device=device)  # picks of each level, where they are settled
        self._counts = torch.zeros(places, dtype=torch.long, device=device)  # children of each row, likewise
        self._nodes = torch.zeros(1, dtype=torch.long, device=device)  # that are selected
        self._floor = torch.zeros(1, dtype=torch.float64, device=device)  # their score at least
        self._width = torch.zeros(1, dtype=torch.long, device=device)  # nodes of a level
        self._sure = torch.zeros(1, dtype=torch.float64, device=device)  # entropy up to which a node has one child
        self._scores = self._of_root.clone()  # of the rows of the next pass: log-probabilities of their branches
        self._picks = self._no_pick.clone()  # of each: parent's row times ``count`` plus its rank
        self._at = self._place.clone()  # of each: its place among those of all levels
        self._column = torch.zeros(1, dtype=torch.long, device=device)  # that the next node is written to
        self._shapes = Shapes(rows, self._capacity, device)  # not the root's, whose pass may be run once more
        self._level: Shape | None = None
        self._queued = self._fetched = 0
        self._selects = False
        self._asked: slice | None = None  # rows of a download that is queued
        self._prepared: set[Hashable] = set()

    def set_forecast(self, forecast: Forecast) -> None:
        """Set what is expanded and selected from the next tree on; it may wait for the device."""
        if forecast == self._forecast:
            return
        self._forecast = forecast
        self._width.fill_(forecast.width)
        self._nodes.fill_(forecast.nodes)
        if isinstance(forecast, Plan):
            picks, counts = torch.full((len(self._plan),), -1), torch.zeros(len(self._plan), dtype=torch.long)
            for level, nodes in enumerate(forecast.levels[:LEVELS]):
                for row, node in enumerate(nodes, start=level * self.rows):
                    counts[row] = node.children
                    if level:
                        picks[row - self.rows] = node.parent * self._guesses.count + node.rank
            self._plan.copy_(picks)
            self._counts.copy_(counts)
            self._floor.fill_(-torch.inf)
            return
        self._floor.fill_(forecast.min_log_prob)
        if forecast.entropy_threshold is not None:
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
        self._queued, self._fetched, self._selects, self._asked = 1, 0, False, None

    def grow(self, levels: int) -> None:
        """Expand ``levels`` more levels, without waiting."""
        assert self._level is not None, "begin comes first"
        for _ in range(levels):
            self._expand(self._level)
        self._queued += levels

    def select(self, shapes: Shapes, shape: Shape) -> None:
        """Write the tokens, positions and ancestors of the best nodes to a shape of the target, and queue the download.

        Args:
            shape: of ``shapes``, staged as :meth:`PaddedEngine.queue_tree` does.
        """
        self._run_select(shapes, shape)
        self._selects = True
        self.queue_download()

    def queue_download(self) -> None:
        """Copy the numbers of levels that were queued since the last time, without waiting."""
        begin = 0 if self._selects and not self._fetched else WIDEST + self._fetched * self.rows
        self._asked = slice(begin, WIDEST + self._queued * self.rows)
        self._fetched = self._queued
        self._download.queue(self._asked)

    def fetch(self) -> tuple[list[list[float]], list[tuple[int, int]] | None]:
        """Wait for these numbers of each row: its column, the pick that made it, and its reduced logits.

        A dead row has a column after the cache's capacity. If nodes were selected, return their tokens and parents too.
        """
        if self._asked is None:
            self.queue_download()
        assert self._asked is not None
        numbers, begin, self._asked = self._download.read(self._asked), self._asked.start, None
        if begin:
            return numbers, None
        selected = [(int(token), int(parent)) for token, parent, *_ in numbers[:WIDEST] if token >= 0]
        return numbers[WIDEST:], selected

    def prepare(self, rows: int, columns: int) -> None:
        """Run what a runner may capture for trees below the last of up to ``rows`` tokens, in the next ``columns``."""

        def read_root(bucket: int, window: int) -> None:
            self._read_root(self._passes.shapes.stage_padding(bucket, window))

        def expand(width: int, window: int) -> None:
            self._expand(self._shapes.stage_padding(width, window))

        self._passes.prepare_each(self._key("root"), self._passes.buckets_of(rows), columns, read_root)
        self._passes.prepare_each(self._key("level"), [self.rows], columns, expand)

    def prepare_select(self, target: PaddedPasses, rows: int, columns: int) -> None:
        """Run what a runner may capture to select trees for passes of the target over up to ``rows`` tokens."""
        for window in target.windows(columns):
            for bucket in target.buckets_of(rows):
                if bucket > 1 and (target.shapes, bucket, window) not in self._prepared:
                    self._run_select(target.shapes, target.shapes.stage_padding(bucket, window))

    def _run_select(self, shapes: Shapes, shape: Shape) -> None:
        key = shapes, shape.rows, shape.write_slots.window
        self._passes.run_alone((self, "select", *key), partial(self._select, shape))
        self._prepared.add(key)

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
        last = slots.masked_fill(slots >= self._capacity, -1).argmax(0, keepdim=True)
        numbers = self._guesses(logits.index_select(0, last)).expand(self.rows, -1)
        column, position = slots.index_select(0, last), root.positions.index_select(0, last)
        visible = root.bits.index_select(0, last).expand(self.rows, -1)
        self._at.copy_(self._place)
        self._column.copy_(column + 1)
        self._scores.copy_(self._of_root)
        self._children.fill_(-torch.inf)
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
        self._table.index_copy_(0, self._at, noted)

    def _choose(self, level: Shape, numbers: Tensor, visible: Tensor, position: Tensor, rows: Tensor) -> None:
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
        seen.scatter_(1, slots.masked_fill(~alive, 0)[:, None], True)  # all see column 0
        level.ids[0].copy_(tokens.flatten().index_select(0, picks))
        level.positions.copy_(position.clamp(max=self._capacity - 1))
        level.write_slots.slots.copy_(slots)
        level.bits.copy_(seen)
        if self._decoder.states is not None:
            made, before = self._decoder.states
            before[: self.rows].copy_(made.index_select(0, rows.index_select(0, parents)))
        self._column.add_(alive.sum(0, keepdim=True))
        self._scores.copy_(best.masked_fill(~alive, -torch.inf))
        self._picks.copy_(picks)
        self._at.copy_(torch.minimum(self._at + self.rows, self._last))

    def _best_children(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of the children that are expanded next, ``[rows]``, -inf for none, and their picks.

        Scores are added in float64 and ties go to the elder, as on the host.
        """
        entropies, log_probs, _ = self._guesses.split(numbers)
        scores = self._scores[:, None] + log_probs
        if self._kind != "beam":
            if self._kind == "plan":
                choices = self._counts.index_select(0, self._at)
            else:
                nats = entropies.double()
                choices = nats.exp().ceil().masked_fill(nats <= self._sure, 1.0)
            scores = scores.masked_fill(self._ranks >= choices[:, None], -torch.inf)
        self._children.index_copy_(0, self._at, scores)
        if self._kind == "plan":
            picks = self._plan.index_select(0, self._at)
            best = scores.flatten().index_select(0, picks.clamp(min=0))
            return best.masked_fill(picks < 0, -torch.inf), picks.clamp(min=0)
        ordered, order = scores.flatten().sort(descending=True, stable=True)
        best, picks = ordered[: self.rows], order[: self.rows]
        return best.masked_fill(self._place >= self._width, -torch.inf), picks

    def _select(self, shape: Shape) -> None:
        """Write the best nodes of all levels to the rows of a shape after its first, which is the root."""
        count, rows = self._guesses.count, shape.rows - 1
        scores = self._children.flatten()
        best, order = scores.masked_fill(scores < self._floor, -torch.inf).sort(descending=True, stable=True)
        kept = (best[:rows] > -torch.inf) & (self._number[:rows] < self._nodes)
        chosen = order[:rows].masked_fill(~kept, len(scores)).sort().values  # elders first, then none
        none = chosen == len(scores)
        node = chosen.masked_fill(none, 0)
        place = node.div(count, rounding_mode="floor")
        rows_of_parents, level = self._table.index_select(0, place), place.div(self.rows, rounding_mode="floor")
        tokens = rows_of_parents[:, -count:].gather(1, (node % count)[:, None])[:, 0]
        above = (level - 1) * self.rows * count + rows_of_parents[:, 1].long()
        parents = (torch.searchsorted(chosen, above) + 1).masked_fill(none | (level == 0), 0)
        selected = torch.stack([tokens.masked_fill(none, -1.0), parents.float()], dim=1)
        self._download.device[:WIDEST, :2].fill_(-1.0)
        self._download.device[:rows, :2].copy_(selected)
        shape.ids[0, 1:].copy_(tokens)
        shape.positions[1:].copy_(shape.positions[:1] + (level + 1).masked_fill(none, 0))
        ancestors = self._eye[: shape.rows, : shape.rows].clone()
        ancestors[1:].scatter_(1, parents[:, None], (~none).float()[:, None])
        for _ in range((LEVELS - 1).bit_length()):
            ancestors = ancestors @ ancestors  # of twice as many levels
        slots = shape.write_slots.slots
        real = slots < shape.write_slots.window
        columns = slots.masked_fill(~real, 0).expand(shape.rows, -1)
        shape.bits.scatter_(1, columns, (ancestors > 0) | ~real)  # all see column 0
