"""Interface of a tree rule, and the description of each rule that the package offers by name.

A rule is a dataclass whose fields are names of options of ``DecodingConfig``. Command line, page, lab and benchmark are
made from its :class:`RuleInfo`. A rule of one's own needs none: ``pair.stream(..., rule=MyRule())``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specllava.core.tree import ROOT_PARENT, DraftTree


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The draft's next-token distribution after one node, as far as growth needs it.

    Args:
        tokens: most likely tokens, best first; drawn ones where children are drawn. There may be fewer than
            ``max_children``, even none, where tokens are forbidden.
        log_probs: their log-probabilities in nats.
        entropy: of the whole distribution, in nats.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    entropy: float


@dataclass(slots=True)
class TreeBuilder:
    """A tree under construction; node 0 is the root.

    ``scores`` are cumulative log-probabilities in nats, ``ranks`` positions among siblings, 0 for the draft's best.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    ranks: list[int] = field(default_factory=lambda: [0])
    log_probs: list[float] = field(default_factory=lambda: [0.0])
    scores: list[float] = field(default_factory=lambda: [0.0])
    entropies: list[float | None] = field(default_factory=lambda: [None])

    def add(self, token: int, parent: int, rank: int, log_prob: float) -> int:
        """Add the child number ``rank`` of ``parent``; return its node id."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.ranks.append(rank)
        self.log_probs.append(log_prob)
        self.scores.append(self.scores[parent] + log_prob)
        self.entropies.append(None)
        return len(self.tokens) - 1


class GrowthRule(ABC):
    """Interface of a tree rule: which nodes get children, when growth stops, what the target verifies; one per answer.

    The limits of ``DecodingConfig`` bind every rule, and ``grow`` refuses what exceeds them. A tree has ``depth``
    levels, ``nodes`` guesses and ``max(depth * width, nodes)`` expanded nodes at most.
    """

    drawable: bool = False
    """Its trees do not depend on which tokens are guessed, so children may be drawn from the draft."""

    @property
    def name(self) -> str:
        """Name in a trace."""
        return type(self).__name__

    @property
    @abstractmethod
    def max_children(self) -> int:
        """The largest number of children that the rule may ask for."""

    @abstractmethod
    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        """Return the number of children of ``node``, after which the draft expects ``top``."""

    @abstractmethod
    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        """Return the nodes of the newest level to expand next; none ends the growth."""

    @abstractmethod
    def select(self, builder: TreeBuilder) -> list[int]:
        """Return the nodes for the target to verify, in growing order, without the root; parents before children."""

    def update(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Learn that the target kept ``path`` (the root first) of the last tree; most rules learn nothing."""
        return

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        """Learn the seconds of drafting and verifying the last tree; most rules learn nothing."""
        return


def capped(**most: int) -> Callable[[Any], dict[str, int]]:
    """Return a function that caps these options of a configuration."""
    return lambda config: {name: min(value, getattr(config, name)) for name, value in most.items()}


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule that the package offers by name.

    Args:
        name: as on the command line and in traces.
        build: the rule's dataclass; its fields are the options that the rule reads.
        help: one clause for ``--help`` and the page.
        colour, symbol: of its point in charts.
        bench_options: options that suit it best in the benchmark, from a configuration (``docs/notes/defaults.md``).
    """

    name: str
    build: Callable[..., GrowthRule]
    help: str
    colour: str
    symbol: str
    bench_options: Callable[[Any], Mapping[str, Any]] = lambda config: {}

    @property
    def options(self) -> tuple[str, ...]:
        """Fields of ``DecodingConfig`` that the rule reads."""
        return tuple(field.name for field in fields(self.build) if field.init)  # type: ignore[arg-type]

    @property
    def drawable(self) -> bool:
        """Whether children may be drawn from the draft, see :attr:`GrowthRule.drawable`."""
        return bool(getattr(self.build, "drawable", False))
