"""Record of the numbers that a sampling verifier drew, for explaining a step; not needed to decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from specllava.core.verdict import Draw
from specllava.verification.sampling import ResidualDistribution, SeededRandom
from specllava.verification.target_view import rounded

LIKELY = 8  # tokens of each distribution that are named


class DrawRecorder:
    """Observer of one step's verification: notes what it is told, and sums it up afterwards, outside the clock."""

    def __init__(self, random: SeededRandom) -> None:
        self._random = random
        self._noted: list[Callable[[], Draw]] = []

    def judged(self, node: int, token: int, residual: ResidualDistribution, acceptance: float) -> None:
        """Note that a guess after ``node`` was judged by the last number drawn, with what was left of p and q."""
        self._noted.append(partial(_judged, node, token, self._random.last, residual, acceptance))

    def drew(self, node: int, token: int, target: Tensor) -> None:
        """Note that the last number drew the target's own token after ``node`` from ``target`` ``[vocab]``."""
        self._noted.append(partial(_drawn, node, token, self._random.last, target))

    def draws(self) -> tuple[Draw, ...]:
        """Return what was noted, in its order."""
        return tuple(draw() for draw in self._noted)


def _judged(node: int, token: int, uniform: float, residual: ResidualDistribution, acceptance: float) -> Draw:
    offered = residual.proposal(token)
    tokens = _likeliest(token, residual.target, offered)
    return Draw(
        node=node,
        token=token,
        uniform=uniform,
        acceptance=acceptance,
        target_prob=float(residual.target[token]),
        draft_prob=float(offered[token]),
        tokens=tokens,
        target_probs=rounded(residual.target[list(tokens)]),
        draft_probs=rounded(offered[list(tokens)]),
        credit=residual.credit,
    )


def _drawn(node: int, token: int, uniform: float, target: Tensor) -> Draw:
    tokens = _likeliest(token, target)
    edges = target.double().cumsum(0) / target.double().sum()
    return Draw(
        node=node,
        token=token,
        uniform=uniform,
        acceptance=None,
        target_prob=float(target[token]),
        draft_prob=None,
        tokens=tokens,
        target_probs=rounded(target[list(tokens)]),
        starts=tuple(float(edges[token - 1]) if token else 0.0 for token in tokens),
    )


def _likeliest(token: int, *distributions: Tensor) -> tuple[int, ...]:
    """Return ``token`` and the likeliest tokens of each distribution ``[vocab]``, by id."""
    found = {token}
    for probs in distributions:
        top = probs.topk(min(LIKELY, len(probs)))
        found.update(index for index, prob in zip(top.indices.tolist(), top.values.tolist(), strict=True) if prob > 0)
    return tuple(sorted(found))
