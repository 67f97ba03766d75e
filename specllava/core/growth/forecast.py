"""Forecasts of what a rule expands, for a device that grows a tree before the host has read any of its numbers.

A forecast decides nothing: ``grow`` runs over the numbers afterwards, and what it finds missing is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Forecast of a rule that grows one shape.

    Args:
        expanded: nodes of each level below the root that are expanded, each by its parent's place among those of the
            level before and its rank among its siblings.
    """

    expanded: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, shape: Shape) -> Plan:
        """Plan a tree of this shape below the root."""
        levels, here = list[tuple[tuple[int, int], ...]](), [shape]
        while here:
            inner = [
                (place, rank, below)
                for place, children in enumerate(here)
                for rank, below in enumerate(children)
                if below
            ]
            levels.append(tuple((place, rank) for place, rank, _ in inner))
            here = [below for _, _, below in inner]
        return cls(tuple(levels[:-1]))

    @property
    def kind(self) -> ForecastKind:
        return "plan"

    @property
    def width(self) -> int:
        return max(map(len, self.expanded), default=1)


Forecast = Beam | Plan
