"""Records that explain a step: the target's view of each node, and the numbers drawn. Decoding does not need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specllava.core.trace import Draw, TargetView
from specllava.core.tree import DraftTree
from specllava.verification.sampling import ResidualDistribution, SeededRandom

LIKELY = 8  # tokens of each distribution that are named


def target_view(tree: DraftTree, logits: Tensor, probs: Tensor | None = None) -> TargetView:
    """Record the target's view of every node, for explaining the step; not needed to decode.

    Args:
        logits: ``[nodes, vocab]``, after each node.
        probs: the distributions that verification used, ``[nodes, vocab]``; ``None``: those of the logits.
    """
    if probs is None:
        probs = torch.softmax(logits.double(), dim=-1).nan_to_num(0.0)  # nothing is likely where all is forbidden
    choices = logits.argmax(-1, keepdim=True)  # the walk's own choice at a tie; topk may break it differently
    parents = torch.tensor(tree.parents[1:], device=logits.device, dtype=torch.long)
    tokens = torch.tensor(tree.tokens[1:], device=logits.device, dtype=torch.long)
    seen = probs[parents]  # [nodes - 1, vocab]: the distribution each guess was drawn against
    own = seen.gather(1, tokens.unsqueeze(1))
    return TargetView(
        choices=tuple(choices[:, 0].tolist()),
        choice_probs=rounded(probs.gather(1, choices).squeeze(1)),
        margins=rounded(margins(logits)),
        token_probs=(1.0, *rounded(own.squeeze(1))),
        token_ranks=(0, *(seen > own).sum(-1).tolist()),
    )


def margins(logits: Tensor) -> Tensor:
    """Compute the likeliest token's logit minus the runner-up's, ``[rows]``, in float64.

    Where the runner-up is impossible, as after a forced token, that is the largest number of float32.
    """
    best = logits.topk(2, dim=-1).values.double()
    return (best[:, 0] - best[:, 1]).nan_to_num(posinf=torch.finfo(torch.float32).max)


def rounded(values: Tensor) -> tuple[float, ...]:
    """Return ``[count]`` values, rounded to seven decimals, which halves the size on file."""
    return tuple(round(value, 7) for value in values.tolist())


class DrawRecorder:
    """Recorder of the numbers that verify one step; it makes records of them afterwards, outside the clock."""

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
