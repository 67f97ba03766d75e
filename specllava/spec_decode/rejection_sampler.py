"""Verification of drafted tokens, greedy or by sampling: the target's tokens, or its distribution, stay what they are.

Why sampling is lossless: one more child of any node does not change the distribution of emitted tokens. It is drawn
from the draft's residual distribution there, or chosen, see :func:`verify_drawn`. So a tree may grow by any rule on
earlier draws. A drawn child must stay: to drop it because of its token changes the distribution. Chosen children need
none of this, see :func:`verify_coupled`.

Distributions come from :func:`warp`, the draft's too, if children are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.generation import LogitsProcessorList

from specllava.trace import Draw, TargetView, Verification
from specllava.tree import DraftTree

LIKELY = 8  # tokens of each distribution that are named in a record
Reduced = Sequence[Sequence[float]]  # [rows, width] of a pass's reduction


class SeededRandom:
    """Random numbers from a seed: the same calls give the same results, on whatever device the probabilities are."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator().manual_seed(seed)
        self.last = 0.0  # the number drawn last

    def accept(self, probability: float) -> bool:
        """Return true with this probability: always at 1.0, never at 0.0."""
        return self._uniform() < probability

    def draw(self, probs: Tensor) -> int:
        """Draw a token from ``probs``, ``[vocab]``, which add up to one; never one of probability zero."""
        possible = probs.nonzero().squeeze(1)  # rounding in the sum cannot hit a token that is not in here
        edges = probs[possible].double().cumsum(0)
        index = int(torch.searchsorted(edges, edges[-1] * self._uniform(), right=True))
        return int(possible[min(index, len(possible) - 1)])

    def _uniform(self) -> float:
        """Draw a number from 0.0 up to, but not including, 1.0."""
        self.last = float(torch.rand((), generator=self._source, dtype=torch.float64))
        return self.last


@dataclass(frozen=True, slots=True)
class GreedyChoices:
    """Reduction of logits to what greedy verification reads: the most likely token, and whether the row is numbers."""

    width: int = 2

    def __call__(self, logits: Tensor) -> Tensor:
        """Compute ``[rows, 2]`` of logits ``[rows, vocab]``: token, and 1.0 if all are numbers; no host is waited for.

        Token ids below 2^24 are float32 numbers.
        """
        likeliest = logits.argmax(-1, keepdim=True)  # NaN counts as the largest number
        return torch.cat([likeliest, logits.gather(-1, likeliest) < torch.inf], dim=-1).float()


class RejectionSampler:
    """Verifier of one answer: greedy, coupled to the target's own draws, or by rejection where children were drawn.

    Args:
        temperature: 0 for a greedy answer.
        random: the answer's random numbers; a greedy answer draws none.
        warpers: what makes distributions of logits; a greedy answer uses none.
    """

    def __init__(self, temperature: float, random: SeededRandom, warpers: LogitsProcessorList) -> None:
        self._random, self._warpers = random, warpers
        # A pass may compute it, so that its logits need not be downloaded; sampling reads them all.
        self.reduction: GreedyChoices | None = None if temperature > 0 else GreedyChoices()

    def first_token(self, logits: Tensor) -> int:
        """Return the first token of an answer, by logits ``[vocab]``: as after a tree that is its root alone.

        Raises:
            ValueError: as :meth:`verify`.
        """
        return self.verify(DraftTree.chain([0]), logits[None])[0].bonus_token

    def verify(
        self,
        tree: DraftTree,
        logits: Tensor,
        draft_probs: Tensor | None = None,
        recorder: DrawRecorder | None = None,
        reduced: Reduced | None = None,
    ) -> tuple[Verification, Tensor | None]:
        """Verify a tree; when sampling, also return the distributions that were used, ``[nodes, vocab]``.

        Args:
            logits: after each node, ``[nodes, vocab]``.
            draft_probs: the distributions that the nodes' children were drawn from, ``[nodes, vocab]``; ``None`` if
                they were chosen.
            recorder: records the numbers that are drawn.
            reduced: by :class:`GreedyChoices`, if the pass has computed them; else computed here.

        Raises:
            ValueError: when sampling, every token is forbidden, the logits are no numbers, or siblings are the same.
        """
        if self.reduction is not None:
            choices = reduced if reduced is not None else self.reduction(logits).tolist()
            return verify_greedy(tree, [int(token) for token, _ in choices]), None
        probs = warp(logits, self._warpers)
        if draft_probs is None:
            verdict = verify_coupled(tree, probs, self._random, recorder)
        else:
            verdict = verify_drawn(tree, probs, draft_probs, self._random, recorder)
        nodes, tokens = list(verdict.path), [*(tree.tokens[node] for node in verdict.accepted), verdict.bonus_token]
        if bool(probs[nodes, tokens].isnan().any()):
            check_finite(logits[nodes], "target")
            raise ValueError(
                "generation_config.json forbids every next token, so none can be drawn: set temperature to 0, or remove"
                " settings from that file"
            )
        return verdict, probs


def warp(logits: Tensor, warpers: LogitsProcessorList) -> Tensor:
    """Compute the distributions to sample from, by transformers' own warpers in the order of its ``generate``.

    Args:
        logits: ``[rows, vocab]``.

    Returns:
        Probabilities in float64, ``[rows, vocab]``; tokens that were cut off have exactly zero.
    """
    scores: Tensor = warpers(None, logits.double())  # none of them looks at the tokens so far
    return scores.softmax(-1)


def draw_children(draft_probs: Tensor, count: int, random: SeededRandom) -> list[int]:
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


def verify_greedy(tree: DraftTree, choices: Sequence[int]) -> Verification:
    """Return the longest branch that the target agrees with, and the target's own token after it.

    Walks from the root while a child carries the target's choice; the same as going from the leaves to the
    root and cutting at the first mismatch (Spec-LLaVA, arXiv 2509.11961, section 3).

    Args:
        choices: the target's most likely token after each node.
    """
    return _follow(tree, choices.__getitem__)


def verify_coupled(
    tree: DraftTree, probs: Tensor, random: SeededRandom, recorder: DrawRecorder | None = None
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
    _check_rows(tree, probs)

    def draw(node: int) -> int:
        token = random.draw(probs[node])
        if recorder:
            recorder.drew(node, token, probs[node])
        return token

    return _follow(tree, draw)


def _follow(tree: DraftTree, target_token: Callable[[int], int]) -> Verification:
    """Walk from the root to the child that carries the target's token, while there is one.

    Args:
        target_token: the target's token after a node; called once for each node of the walk, in its order.
    """
    children = tree.children()
    accepted: list[int] = []
    node = 0
    while True:
        token = target_token(node)
        match = next((child for child in children[node] if tree.tokens[child] == token), None)
        if match is None:
            return Verification(tuple(accepted), token)
        accepted.append(match)
        node = match


def verify_drawn(
    tree: DraftTree, probs: Tensor, draft_probs: Tensor, random: SeededRandom, recorder: DrawRecorder | None = None
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
    _check_rows(tree, probs, draft_probs)
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


def _check_rows(tree: DraftTree, *distributions: Tensor) -> None:
    """Refuse a tree that cannot be sampled from.

    Raises:
        ValueError: siblings with the same token, or not one row of each distribution for each node.
    """
    for rows in distributions:
        if rows.dim() != 2 or len(rows) != len(tree):
            raise ValueError(f"{len(tree)} nodes need one row of probabilities each, not shape {list(rows.shape)}")
    seen: dict[tuple[int, int], int] = {}
    for node, family in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        elder = seen.setdefault(family, node)
        if elder != node:
            raise ValueError(f"nodes {elder} and {node} are siblings with the same token {tree.tokens[node]}")


def check_finite(logits: Tensor, whose: str, reduced: Reduced | None = None) -> None:
    """Refuse logits that are no numbers.

    Args:
        reduced: by :class:`GreedyChoices`, if the pass has computed them.

    Raises:
        ValueError: NaN or positive infinity, as from damaged weights or an overflow of float16.
    """
    finite = bool((logits < torch.inf).all()) if reduced is None else all(known for _, known in reduced)
    if not finite:
        raise ValueError(
            f"the {whose}'s logits are not numbers: its weights are damaged, or float16 overflowed (try --dtype"
            " bfloat16 or float32)"
        )


class DrawRecorder:
    """Recorder of the numbers that verify one step; it makes records of them afterwards, outside the clock."""

    def __init__(self, random: SeededRandom) -> None:
        self._random = random
        self._noted: list[Callable[[], Draw]] = []

    def judged(self, node: int, token: int, residual: ResidualDistribution, acceptance: float) -> None:
        """Note that a guess after ``node`` was judged by the last number drawn, with the residual p and q."""
        self._noted.append(partial(_record, node, token, self._random.last, residual.target, residual, acceptance))

    def drew(self, node: int, token: int, target: Tensor) -> None:
        """Note that the last number drew the target's own token after ``node`` from ``target`` ``[vocab]``."""
        self._noted.append(partial(_record, node, token, self._random.last, target))

    def draws(self) -> tuple[Draw, ...]:
        """Make the records, in order."""
        return tuple(draw() for draw in self._noted)


def _record(
    node: int,
    token: int,
    uniform: float,
    target: Tensor,
    residual: ResidualDistribution | None = None,
    acceptance: float | None = None,
) -> Draw:
    """Make the record of one number: without a residual, one that drew the target's own token."""
    offered = () if residual is None else (residual.proposal(token),)
    likely = {token}
    for probs in (target, *offered):
        top = probs.topk(min(LIKELY, len(probs)))
        likely.update(index for index, prob in zip(top.indices.tolist(), top.values.tolist(), strict=True) if prob > 0)
    tokens = tuple(sorted(likely))
    edges = target.double().cumsum(0) / target.double().sum()
    return Draw(
        node=node,
        token=token,
        uniform=uniform,
        acceptance=acceptance,
        target_prob=float(target[token]),
        draft_prob=float(offered[0][token]) if offered else None,
        tokens=tokens,
        target_probs=rounded(target[list(tokens)]),
        draft_probs=rounded(offered[0][list(tokens)]) if offered else (),
        starts=() if offered else tuple(float(edges[token - 1]) if token else 0.0 for token in tokens),
    )


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
