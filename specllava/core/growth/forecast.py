"""Forecasts of what a rule expands, for a device that grows a tree before the host has read any of its numbers.

A forecast decides nothing: ``grow`` runs over the numbers afterwards, and what it finds missing is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from specllava.core.growth.shapes import Shape

ForecastKind = Literal["beam", "branching", "plan"]  # what a device computes; the rest is numbers


@dataclass(frozen=True, slots=True)
class Beam:
    """Forecast of a rule that expands the best nodes of each level, see :class:`ScoredRule`.

    Args:
        width: nodes of a level that are expanded at most.
        nodes: of the tree; no more than the best so many of all are expanded.
        min_log_prob: cumulative log-probability of expanded nodes at least, in nats.
        entropy_threshold: up to it a node has one child, above it ``ceil(exp H)``; ``None``: as many as there are.
    """

    width: int
    nodes: int
    min_log_prob: float
    entropy_threshold: float | None = None

    @property
    def kind(self) -> ForecastKind:
        return "beam" if self.entropy_threshold is None else "branching"


class PlannedNode(NamedTuple):
    """A node that is expanded.

    Args:
        parent: its parent's place among those of the level before.
        rank: among its siblings.
    """

    parent: int
    rank: int
    children: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Forecast of a rule that grows one shape.

    Args:
        nodes: of the shape, all of which are selected.
        levels: nodes of each level that are expanded, the root's first.
    """

    nodes: int
    levels: tuple[tuple[PlannedNode, ...], ...]

    @classmethod
    def of(cls, shape: Shape) -> Plan:
        """Plan a tree of this shape below the root."""
        levels, here, nodes = list[tuple[PlannedNode, ...]](), [(0, 0, shape)], 0
        while here:
            levels.append(tuple(PlannedNode(place, rank, len(below)) for place, rank, below in here))
            nodes += sum(len(below) for *_, below in here)
            below_here = [
                (place, rank, below)
                for place, (*_, children) in enumerate(here)
                for rank, below in enumerate(children)
            ]
            here = [one for one in below_here if one[2]]
        return cls(nodes, tuple(levels))

    @property
    def kind(self) -> ForecastKind:
        return "plan"

    @property
    def width(self) -> int:
        return max(map(len, self.levels))


Forecast = Beam | Plan
