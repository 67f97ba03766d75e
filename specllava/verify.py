"""Verification: logits in, verdict out. Knows no model and no cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specllava.trace import TargetView, Verification
from specllava.tree import DraftTree


def verify_greedy(tree: DraftTree, choices: Sequence[int]) -> Verification:
    """The longest branch that the target agrees with, and the target's own token behind it.

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


def clip(tokens: Sequence[int], room: int, eos: frozenset[int]) -> tuple[int, ...]:
    """What may be emitted: up to the end of the answer, ``room`` tokens at most. The one stop rule of every lane."""
    for position, token in enumerate(tokens[:room]):
        if token in eos:
            return tuple(tokens[: position + 1])
    return tuple(tokens[:room])


def target_view(tree: DraftTree, logits: Tensor, probs: Tensor) -> TargetView:
    """What the target thought of every node, for explaining the step; not needed to decode.

    Args:
        logits: ``[nodes, vocab]``, after each node.
        probs: the distributions that the judge went by, ``[nodes, vocab]``.
    """
    choices = logits.argmax(-1, keepdim=True)  # the walk's own choice at a tie; topk may break it differently
    best = logits.topk(2, dim=-1).values.double()
    parents = torch.tensor(tree.parents[1:], device=logits.device, dtype=torch.long)
    tokens = torch.tensor(tree.tokens[1:], device=logits.device, dtype=torch.long)
    seen = probs[parents]  # [nodes - 1, vocab]: the distribution each guess was drawn against
    own = seen.gather(1, tokens.unsqueeze(1))
    return TargetView(
        choices=tuple(choices[:, 0].tolist()),
        choice_probs=_rounded(probs.gather(1, choices).squeeze(1)),
        margins=_rounded(best[:, 0] - best[:, 1]),
        token_probs=(1.0, *_rounded(own.squeeze(1))),
        token_ranks=(0, *(seen > own).sum(-1).tolist()),
    )


def _rounded(values: Tensor) -> tuple[float, ...]:
    """Seven decimals: far below what can be seen, and half the size on file."""
    return tuple(round(value, 7) for value in values.tolist())
