"""Verifiers, one per answer: the target's most likely token, or a draw from its distribution; its view of a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.generation import LogitsProcessorList

from specllava.core.config import DecodingConfig
from specllava.core.trace import TargetView, Verification
from specllava.core.tree import DraftTree
from specllava.verification.sampling import (
    DrawRecorder,
    RandomSource,
    rounded,
    verify_drawn,
    verify_top,
    warp,
)


def verify_greedy(tree: DraftTree, choices: Sequence[int]) -> Verification:
    """Return the longest branch that the target agrees with, and the target's own token after it.

    Walks from the root while a child carries the target's choice; the same as going from the leaves to the
    root and cutting at the first mismatch (Spec-LLaVA, arXiv 2509.11961, section 3).

    Args:
        choices: the target's most likely token after each node.
    """
    children = tree.children()
    accepted: list[int] = []
    node = 0
    while True:
        match = next((child for child in children[node] if tree.tokens[child] == choices[node]), None)
        if match is None:
            return Verification(tuple(accepted), choices[node])
        accepted.append(match)
        node = match


Numbers = Sequence[Sequence[float]]  # [rows, width] of a pass's reduction


@dataclass(frozen=True, slots=True)
class Choices:
    """The most likely token of each row of logits, and 1.0 if they are numbers: what greedy decoding has to know."""

    width: int = 2

    def __call__(self, logits: Tensor) -> Tensor:
        """Return ``[rows, 2]`` for logits ``[rows, vocab]``; token ids below 2^24 are float32 numbers."""
        return torch.stack([logits.argmax(-1), (logits < torch.inf).all(-1)], dim=-1).float()


class GreedyVerifier:
    """Verifier that accepts the target's most likely token."""

    reduction: Choices | None = Choices()  # that a pass may compute, so that its logits need not be downloaded

    def first_token(self, logits: Tensor) -> int:
        """Return the first token of an answer, by logits ``[vocab]``."""
        return int(logits.argmax())

    def verify(
        self,
        tree: DraftTree,
        logits: Tensor,
        draft_probs: Tensor | None,
        recorder: DrawRecorder | None = None,
        numbers: Numbers | None = None,
    ) -> tuple[Verification, Tensor | None]:
        """Verify a tree, by logits ``[nodes, vocab]`` or the ``numbers`` that :class:`Choices` made of them."""
        choices = logits.argmax(-1).tolist() if numbers is None else [int(token) for token, _ in numbers]
        return verify_greedy(tree, choices), None


class SamplingVerifier:
    """Verifier that keeps the target's own distribution, warped by temperature, top-k, top-p and other cutoffs."""

    reduction: Choices | None = None

    def __init__(self, random: RandomSource, warpers: LogitsProcessorList) -> None:
        self._random, self._warpers = random, warpers

    def first_token(self, logits: Tensor) -> int:
        """Draw the first token of an answer, by logits ``[vocab]``."""
        probs = warp(logits[None], self._warpers)[0]
        token = self._random.draw(probs)
        _check_possible(logits, probs, token)
        return token

    def verify(
        self,
        tree: DraftTree,
        logits: Tensor,
        draft_probs: Tensor | None,
        recorder: DrawRecorder | None = None,
        numbers: Numbers | None = None,
    ) -> tuple[Verification, Tensor | None]:
        """Verify a tree; also return the distributions ``[nodes, vocab]`` that were used.

        Args:
            logits: ``[nodes, vocab]``.
            draft_probs: the distributions that the nodes' children were drawn from, ``[nodes, vocab]``; ``None`` if
                they were chosen.
            recorder: records the numbers that are drawn.
        """
        probs = warp(logits, self._warpers)
        if draft_probs is None:
            verdict = verify_top(tree, probs, self._random, recorder)
        else:
            verdict = verify_drawn(tree, probs, draft_probs, self._random, recorder)
        last = verdict.path[-1]
        _check_possible(logits[last], probs[last], verdict.bonus_token)
        return verdict, probs


Verifier = GreedyVerifier | SamplingVerifier


def build_verifier(config: DecodingConfig, random: RandomSource, warpers: LogitsProcessorList) -> Verifier:
    """Build the verifier of a configuration."""
    return SamplingVerifier(random, warpers) if config.temperature > 0 else GreedyVerifier()


def _check_possible(logits: Tensor, probs: Tensor, token: int) -> None:
    """Refuse to draw where nothing can be drawn.

    Args:
        logits, probs: that ``token`` was drawn from, ``[vocab]``.

    Raises:
        ValueError: every token is forbidden, or the logits are no numbers.
    """
    if math.isnan(float(probs[token])):
        check_finite(logits, "target")
        raise ValueError(
            "generation_config.json forbids every next token, so none can be drawn: set temperature to 0, or remove"
            " settings from that file"
        )


def check_finite(logits: Tensor, whose: str, numbers: Numbers | None = None) -> None:
    """Refuse logits that are no numbers.

    Args:
        numbers: of :class:`Choices`, if the pass has computed them.

    Raises:
        ValueError: NaN or positive infinity, as from damaged weights or an overflow of float16.
    """
    finite = bool((logits < torch.inf).all()) if numbers is None else all(known for _, known in numbers)
    if not finite:
        raise ValueError(
            f"the {whose}'s logits are not numbers: its weights are damaged, or float16 overflowed (try --dtype"
            " bfloat16 or float32)"
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
