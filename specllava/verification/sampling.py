"""Verification by sampling: the emitted tokens have exactly the target's distribution. Needs no model and no cache.

Why it is lossless: one more child of any node does not change the distribution of emitted tokens. It is drawn from the
draft's residual distribution there, or chosen, see :func:`verify_drawn`. So a tree may grow by any rule on earlier
draws. A drawn child must stay: to drop it because of its token changes the distribution. Chosen children need none of
this, see :func:`verify_top`.

Distributions come from :func:`warp`, the draft's too, if children are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from transformers.generation import LogitsProcessorList

from specllava.core.trace import Draw, Verification
from specllava.core.tree import DraftTree

LIKELY = 8  # tokens of each distribution that are named in a record


class RandomSource(Protocol):
    """Interface of the only source of randomness."""

    def accept(self, probability: float) -> bool:
        """Return true with this probability: always at 1.0, never at 0.0."""
        ...

    def draw(self, probs: Tensor) -> int:
        """Draw a token from ``probs``, ``[vocab]``, which add up to one; never one of probability zero."""
        ...


class SeededRandom:
    """RandomSource from a seed: the same calls give the same results, on whatever device the probabilities are."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator().manual_seed(seed)
        self.last = 0.0  # the number drawn last

    def accept(self, probability: float) -> bool:
        return self._uniform() < probability

    def draw(self, probs: Tensor) -> int:
        possible = probs.nonzero().squeeze(1)  # rounding in the sum cannot hit a token that is not in here
        edges = probs[possible].double().cumsum(0)
        place = int(torch.searchsorted(edges, edges[-1] * self._uniform(), right=True))
        return int(possible[min(place, len(possible) - 1)])

    def _uniform(self) -> float:
        """Draw a number from 0.0 up to, but not including, 1.0."""
        self.last = float(torch.rand((), generator=self._source, dtype=torch.float64))
        return self.last


def warp(logits: Tensor, warpers: LogitsProcessorList) -> Tensor:
    """Compute the distributions to sample from, by transformers' own warpers in the order of its ``generate``.

    Args:
        logits: ``[rows, vocab]``.

    Returns:
        Probabilities in float64, ``[rows, vocab]``; tokens that were cut off have exactly zero.
    """
    scores: Tensor = warpers(None, logits.double())  # none of them looks at the tokens so far
    return scores.softmax(-1)


def draw_children(draft_probs: Tensor, count: int, random: RandomSource) -> list[int]:
    """Draw different tokens from the draft, one after the other, in the order in which they must be verified.

    Args:
        draft_probs: the draft's distribution after their parent, ``[vocab]``.
        count: tokens wanted; fewer are returned if fewer have a probability above zero.
    """
    tokens: list[int] = []
    while len(tokens) < count and bool(draft_probs.any()):
        tokens.append(random.draw(draft_probs))
        draft_probs = _without(draft_probs, tokens[-1])
    return tokens


def verify_top(
    tree: DraftTree, probs: Tensor, random: RandomSource, recorder: DrawRecorder | None = None
) -> Verification:
    """Verify children that were chosen, not drawn, such as the draft's most likely ones.

    The target draws its own token after each node, and where a child bears it, goes on from there. So there is one
    draw for each emitted token, exactly as without any tree. With the same seed, the answer is the target's own, token
    for token. And no rule accepts more: each node is accepted as often as the target itself would emit it.

    Args:
        probs: the target's distribution after each node, ``[nodes, vocab]``.

    Raises:
        ValueError: siblings with the same token, or not one row for each node.
    """
    _check(tree, probs)
    children = tree.children()
    accepted: list[int] = []
    while True:
        node = accepted[-1] if accepted else 0
        token = random.draw(probs[node])
        if recorder:
            recorder.drew(node, token, probs[node])
        child = next((child for child in children[node] if tree.tokens[child] == token), None)
        if child is None:
            return Verification(tuple(accepted), token)
        accepted.append(child)


def verify_drawn(
    tree: DraftTree, probs: Tensor, draft_probs: Tensor, random: RandomSource, recorder: DrawRecorder | None = None
) -> Verification:
    """Verify children that were drawn from the draft without replacement (Sequoia, arXiv 2402.12374).

    From the root down: a child is accepted with ``min(1, p / q)``; else the target keeps ``max(p - q, 0)``, the
    draft loses the token, both are scaled to one again, and the next sibling is tried. A token to which ``q`` gives
    nothing, because the draft ran out of tokens or never had it, cannot have been drawn; it counts as chosen.

    Args:
        probs: the target's distribution after each node, ``[nodes, vocab]``.
        draft_probs: the distribution that each node's children were drawn from in node order, ``[nodes, vocab]``;
            rows of nodes without children are not read.

    Raises:
        ValueError: siblings with the same token, or not one row for each node.
    """
    _check(tree, probs, draft_probs)
    children = tree.children()
    accepted: list[int] = []
    node = 0
    while True:
        residual = ResidualDistribution(probs[node], draft_probs[node])
        for child in children[node]:
            token = tree.tokens[child]
            acceptance = residual.acceptance(token)
            taken = random.accept(acceptance)
            if recorder:
                recorder.judged(node, token, residual, acceptance)
            if taken:
                break
            residual = residual.without(token)
        else:
            token = random.draw(residual.target)
            if recorder:
                recorder.drew(node, token, residual.target)
            return Verification(tuple(accepted), token)
        accepted.append(child)
        node = child


@dataclass(frozen=True, slots=True)
class ResidualDistribution:
    """Residual distributions at a node after some of its children were refused.

    Args:
        target: the target's distribution of the next token, given that, ``[vocab]``.
        draft: the draft's distribution of the next child, ``[vocab]``; all zero once it ran out of tokens.
    """

    target: Tensor
    draft: Tensor

    def acceptance(self, token: int) -> float:
        """Return the probability of accepting the child ``token``."""
        wanted = float(self.target[token])
        offered = float(self.draft[token]) or 1.0  # a token that cannot have been drawn was chosen
        return 1.0 if wanted >= offered else wanted / offered

    def proposal(self, token: int) -> Tensor:
        """Return the distribution of the child ``token``, ``[vocab]``: one that cannot have been drawn was chosen."""
        if self.draft[token] > 0:
            return self.draft
        chosen = torch.zeros_like(self.target)
        chosen[token] = 1.0
        return chosen

    def without(self, token: int) -> ResidualDistribution:
        """Return the residual distributions after the child ``token`` was refused."""
        residual = (self.target - self.proposal(token)).clamp(min=0.0)
        mass = float(residual.sum())
        draft = _without(self.draft, token)
        if mass == 0.0:  # the draft had all that was wanted: only rounding can have refused it
            return ResidualDistribution(self.target, draft)
        return ResidualDistribution(residual / mass, draft)


def _without(probs: Tensor, token: int) -> Tensor:
    """Return a distribution ``[vocab]`` without ``token``; all zero if nothing else was possible."""
    residual = probs.clone()
    residual[token] = 0.0
    mass = float(residual.sum())
    return residual / mass if mass > 0.0 else residual


def _check(tree: DraftTree, *distributions: Tensor) -> None:
    for rows in distributions:
        if rows.dim() != 2 or len(rows) != len(tree):
            raise ValueError(f"{len(tree)} nodes need one row of probabilities each, not shape {list(rows.shape)}")
    seen: dict[tuple[int, int], int] = {}
    for node, family in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        elder = seen.setdefault(family, node)
        if elder != node:
            raise ValueError(f"nodes {elder} and {node} are siblings with the same token {tree.tokens[node]}")


class DrawRecorder:
    """Recorder of the numbers that verify one step; it makes records of them afterwards, outside the clock."""

    def __init__(self, random: SeededRandom) -> None:
        self._random = random
        self._noted: list[Callable[[], Draw]] = []

    def judged(self, node: int, token: int, residual: ResidualDistribution, acceptance: float) -> None:
        """Note that a guess after ``node`` was judged by the last number drawn, with the residual p and q."""
        self._noted.append(partial(_judged, node, token, self._random.last, residual, acceptance))

    def drew(self, node: int, token: int, target: Tensor) -> None:
        """Note that the last number drew the target's own token after ``node`` from ``target`` ``[vocab]``."""
        self._noted.append(partial(_drawn, node, token, self._random.last, target))

    def draws(self) -> tuple[Draw, ...]:
        """Make the records, in order."""
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
    tokens = {token}
    for probs in distributions:
        top = probs.topk(min(LIKELY, len(probs)))
        tokens.update(index for index, prob in zip(top.indices.tolist(), top.values.tolist(), strict=True) if prob > 0)
    return tuple(sorted(tokens))


def rounded(values: Tensor) -> tuple[float, ...]:
    """Return ``[count]`` values, rounded to seven decimals, which halves the size on file."""
    return tuple(round(value, 7) for value in values.tolist())
