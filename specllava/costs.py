"""The cost-aware rule: a tree is worth what it saves. Costs are measured, the draft's honesty is learnt on the way.

Let ``P_v`` be the probability that node ``v`` is accepted. A step yields ``1 + sum(P_v)`` tokens and takes
``t(n) + levels``. Decoding is fastest where ``tokens - R * seconds`` is largest, ``R`` being the rate of the whole
run (Dinkelbach's method for ratios); so a node stays if ``P_v`` exceeds ``R`` times what its column costs, and a
level is drafted if it promises more than ``R`` times what it costs.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from specllava.growth import Guess, Sprout
from specllava.tree import DraftTree

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)  # bins of the draft's probability
TRUST = 8.0  # verdicts in a bin that weigh as much as the draft's own word
FIRST_CHANCE = 0.8  # that one of a node's children is taken, until there are verdicts
FIRST_TOKENS = 2.0  # tokens per step to begin with
FADING = 0.99  # what a step weighs at every later one: a machine's speed drifts, so about 100 steps count


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one pass by its number of tokens: entry ``n - 1`` is for ``n`` tokens.

    Args:
        verify: of the target; a tree of ``n`` guesses takes ``n + 1`` tokens.
        draft: of the draft, for one level.
    """

    verify: tuple[float, ...]
    draft: tuple[float, ...]

    @classmethod
    def through(cls, verify: dict[int, float], draft: dict[int, float]) -> Costs:
        """A curve near the measured points by which more tokens never cost less.

        What a rule goes by is what one more token costs, and that is less than what disturbs a measurement: so the
        points are smoothed and not joined.
        """
        return cls(_line(verify), _line(draft))

    def check(self, guesses: int) -> float:
        """Seconds of verifying that many guesses."""
        return self.verify[min(guesses, len(self.verify) - 1)]

    def level(self, width: int) -> float:
        """Seconds of drafting below ``width`` nodes at once."""
        return self.draft[min(width, len(self.draft)) - 1]


def _line(points: dict[int, float]) -> tuple[float, ...]:
    """Least squares of ``a + b [n > 1] + c sqrt(n) + d n``, all but ``a`` not below 0: level on a GPU, bent on a CPU.

    The first token stands apart, since a product with a vector runs another kernel than one with a matrix.
    """
    known = np.array(sorted(points), dtype=float)
    values = np.array([points[int(n)] for n in known])
    numbers = np.arange(1.0, known[-1] + 1)
    fits = []
    for used in sorted(product((False, True), repeat=3), key=sum):
        at, curve = (_shapes(n)[:, [True, *used]] for n in (known, numbers))
        weights = np.linalg.lstsq(at, values, rcond=None)[0]
        if (weights[1:] >= 0).all():
            misses = at @ weights / values - 1
            fits.append((round(float(np.square(misses).sum()), 9), curve @ weights))
    return tuple(min(fits, key=lambda fit: fit[0])[1].tolist())  # of equal ones that with the fewest parts


def _shapes(n: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``[numbers, 4]``: what a curve of costs is made of."""
    return np.stack([np.ones_like(n), n > 1, np.sqrt(n), n], axis=1)


@dataclass(slots=True)
class Calibration:
    """How often the target takes a guess to which the draft gave probability ``q``, learnt from its verdicts.

    The best guess and the others are kept apart: of two guesses as probable as each other to the draft, a target that
    says what it thinks likeliest takes the best one more often.
    """

    taken: list[float] = field(default_factory=lambda: [0.0] * 2 * (len(EDGES) + 1))
    seen: list[float] = field(default_factory=lambda: [0.0] * 2 * (len(EDGES) + 1))

    def chance(self, q: float, best: bool) -> float:
        """Between the draft's own word and the share that was taken, by how many verdicts there are."""
        box = 2 * bisect(EDGES, q) + best
        return (TRUST * q + self.taken[box]) / (TRUST + self.seen[box])

    def add(self, q: float, best: bool, taken: bool) -> None:
        box = 2 * bisect(EDGES, q) + best
        self.taken[box] += taken
        self.seen[box] += 1


@dataclass(slots=True)
class Pace:
    """What steps took of late, by what passes alone were measured to take: bookkeeping, and the machine's speed now."""

    _taken: float = 0.0
    _planned: float = 0.0

    @property
    def factor(self) -> float:
        return self._taken / self._planned if self._planned else 1.0

    def add(self, taken: float, planned: float) -> None:
        self._taken, self._planned = FADING * self._taken + taken, FADING * self._planned + planned


@dataclass(slots=True)
class Experience:
    """What is known of a pair on this machine: what its passes cost, and what decoding has taught since it was loaded.

    Answers share it. A single one is too short to learn from: its first steps would go by the draft's own word, and a
    draft that was trained to spread its probability says less than the greedy target takes.

    Args:
        costs: of passes.
    """

    costs: Costs
    calibration: Calibration = field(default_factory=Calibration)
    checking: Pace = field(default_factory=Pace)
    drafting: Pace = field(default_factory=Pace)
    _tokens: float = FIRST_TOKENS
    _seconds: float = 0.0
    _planned: tuple[float, float] = (0.0, 0.0)  # of the last step: to draft, to check
    _went_on: float = FIRST_CHANCE * TRUST  # accepted nodes of which a child was taken, and those that had children
    _could: float = TRUST

    def __post_init__(self) -> None:
        self._seconds = self.costs.check(0) + self.costs.level(1)

    @property
    def rate(self) -> float:
        """Tokens per second, of late."""
        return self._tokens / self._seconds

    @property
    def prices(self) -> tuple[float, float]:
        """Tokens that a second of drafting and one of checking, as ``costs`` has them, are worth at today's pace."""
        rate = self.rate
        return rate * self.drafting.factor, rate * self.checking.factor

    @property
    def often(self) -> float:
        """The share of accepted nodes with children of which one was taken, whatever its probability."""
        return self._went_on / self._could

    def learn(self, tree: DraftTree, path: Sequence[int], widths: Sequence[int]) -> None:
        """The target kept ``path`` of a tree that was drafted in levels of these widths.

        Verdicts count where the parent was accepted: only there does the chance of a node matter.
        """
        accepted = set(path)
        met: set[int] = set()  # parents whose best guess was met; siblings stand best first
        for node in range(1, len(tree)):
            parent = tree.parents[node]
            if parent not in accepted:
                continue
            taken, best = node in accepted, parent not in met
            self.calibration.add(math.exp(tree.log_probs[node]), best, taken)
            met.add(parent)
            self._went_on += taken
        self._could += len(met)
        self._planned = sum(self.costs.level(width) for width in widths), self.costs.check(tree.drafted)
        seconds = self.drafting.factor * self._planned[0] + self.checking.factor * self._planned[1]
        self._tokens, self._seconds = FADING * self._tokens + len(path), FADING * self._seconds + seconds

    def timed(self, draft: float, check: float) -> None:
        """Seconds that the step last learnt from really took."""
        self.drafting.add(draft, self._planned[0])
        self.checking.add(check, self._planned[1])


@dataclass(slots=True)
class CostAwareRule:
    """Grows while a level promises more than it costs, and keeps what the target's pass is worth.

    Args:
        known: of the pair on this machine; learns on.
        width, nodes: limits of a level and of a tree.
        most: children of a node at most.
    """

    known: Experience
    width: int
    nodes: int
    most: int
    _chances: list[float] = field(default_factory=lambda: [1.0])  # P_v of the tree that is growing
    _widths: list[int] = field(default_factory=list)  # of its levels
    _prices: tuple[float, float] = (0.0, 0.0)  # of this step
    _column: float = 0.0  # seconds that a node adds to a check at the least
    _least: float = 0.0  # chance below which a node is worth that in no tree

    def __post_init__(self) -> None:
        self._column = min((after - before for before, after in pairwise(self.known.costs.verify)), default=0.0)

    def branches(self, sprout: Sprout, node: int, guess: Guess) -> int:
        """As many as have a chance worth a column; one at least, which ``kept`` may drop."""
        if node == 0:
            self._begin()
        calibration, before = self.known.calibration, self._chances[node]
        for rank, log_prob in enumerate(guess.log_probs[: self.most]):
            chance = before * calibration.chance(math.exp(log_prob), best=rank == 0)
            if rank and chance < self._least:
                return rank
            self._chances.append(chance)
        return self.most

    def _begin(self) -> None:
        self._chances, self._widths = [1.0], [1]
        self._prices = self.known.prices
        self._least = self._prices[1] * self._column

    def frontier(self, sprout: Sprout, level: Sequence[int]) -> list[int]:
        """The best nodes of the level, as many as pay; none if none do.

        Looking one level ahead is enough: promises shrink from level to level and the cost does not. A node promises
        its own chance times how often one of a node's children is taken, best guess or not: in doubt both are kept.
        """
        often, costs, (draft_price, check_price) = self.known.often, self.known.costs, self._prices
        held = min(len(self._chances) - 1, self.nodes)
        before = costs.check(held)
        promise, best_gain, count = 0.0, 0.0, 0
        best = sorted(level, key=lambda node: -self._chances[node])[: self.width]
        for width, node in enumerate(best, start=1):
            promise += often * self._chances[node]
            gain = promise - draft_price * costs.level(width) - check_price * (costs.check(held + width) - before)
            if gain <= best_gain:
                break
            best_gain, count = gain, width
        self._widths += [count] if count else []
        return best[:count]

    def kept(self, sprout: Sprout) -> list[int]:
        """Nodes by falling chance, as many as make the step's balance best; ties go to the elder, so to parents."""
        order = sorted(range(1, len(sprout.tokens)), key=lambda node: (-self._chances[node], node))[: self.nodes]
        chances = [self._chances[node] for node in order]
        return sorted(order[: choose(chances, self._prices[1], self.known.costs)])

    def learn(self, tree: DraftTree, path: Sequence[int]) -> None:
        self.known.learn(tree, path, self._widths)


def choose(chances: Sequence[float], price: float, costs: Costs) -> int:
    """How many of falling ``chances`` are worth checking: the count with the best ``sum - price * seconds``."""
    total, best, count = 0.0, -price * costs.check(0), 0
    for number, chance in enumerate(chances, start=1):
        total += chance
        if (balance := total - price * costs.check(number)) > best:
            best, count = balance, number
    return count
