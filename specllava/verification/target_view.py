"""The target's view of every node of a tree, for explaining a step."""

from __future__ import annotations

import torch
from torch import Tensor

from specllava.core.tree import DraftTree
from specllava.core.verdict import TargetView


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

    Where the runner-up is impossible, as behind a forced token, that is the largest number of float32.
    """
    best = logits.topk(2, dim=-1).values.double()
    return (best[:, 0] - best[:, 1]).nan_to_num(posinf=torch.finfo(torch.float32).max)


def rounded(values: Tensor) -> tuple[float, ...]:
    """Return ``[count]`` values, rounded to seven decimals, which halves the size on file."""
    return tuple(round(value, 7) for value in values.tolist())
