"""Losses of language-model training and distillation: tensors in, scalars out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specllava.distill.config import Objective

IGNORE = -100
Head = Callable[[Tensor], Tensor]  # hidden states [n, hidden] to logits [n, vocab]


def chunked_loss(
    ours: Tensor, our_head: Head, theirs: Tensor, their_head: Head, tokens: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Compute the loss of :class:`Objective` from hidden states, in chunks.

    ``(1 - w) CE + w T² KL(target || draft)`` over answer tokens (Spec-LLaVA, arXiv 2509.11961).

    Args:
        ours, theirs: ``[answers, hidden]`` of draft and target, which predict ``tokens`` ``[answers]``.

    Returns:
        The loss, and KL(target ‖ draft) at temperature 1 in nats per token, detached.
    """

    def sums(ours: Tensor, theirs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _sums(our_head(ours), their_head(theirs), tokens, objective.temperature)

    ce, kl, plain_kl = sum_in_chunks(sums, (ours, theirs, tokens), objective.chunk, 3)
    count = len(tokens)
    softened = objective.kl_weight * objective.temperature**2
    return ((1 - objective.kl_weight) * ce + softened * kl) / count, plain_kl.detach() / count


def chunked_cross_entropy(ours: Tensor, our_head: Head, tokens: Tensor, chunk: int) -> Tensor:
    """Compute the mean cross-entropy alone, without a target, in chunks."""

    def sums(ours: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (F.cross_entropy(our_head(ours).float(), tokens, reduction="sum"),)

    (total,) = sum_in_chunks(sums, (ours, tokens), chunk, 1)
    return total / len(tokens)


def sum_in_chunks(
    sums: Callable[..., tuple[Tensor, ...]], rows: Sequence[Tensor], chunk: int, results: int
) -> list[Tensor]:
    """Add up the ``results`` that ``sums`` returns for at most ``chunk`` rows of all tensors at a time.

    Logits of a chunk are computed from its states, used, freed, and recomputed in the backward pass
    (``torch.utils.checkpoint``). Memory for them is about ``11 x 4 x chunk x vocab`` bytes, however many the answers.
    """
    totals = [rows[0].new_zeros((), dtype=torch.float32) for _ in range(results)]
    for start in range(0, len(rows[0]), chunk):
        part = checkpoint(
            sums, *(one[start : start + chunk] for one in rows), use_reentrant=False, preserve_rng_state=False
        )
        totals = [total + one for total, one in zip(totals, part, strict=True)]
    return totals


def _sums(ours: Tensor, theirs: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over a chunk the cross-entropy, the softened KL, and the KL at temperature 1 (equal where T is 1)."""
    ours, theirs = ours.float(), theirs.float()  # [n, vocab]
    ce = F.cross_entropy(ours, tokens, reduction="sum")
    kl = _kl(ours / temperature, theirs / temperature)
    if temperature == 1.0:
        return ce, kl, kl.detach()
    with torch.no_grad():
        return ce, kl, _kl(ours, theirs)


def _kl(ours: Tensor, theirs: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(ours, -1), F.log_softmax(theirs, -1), log_target=True, reduction="sum")


def answer_positions(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Select the logits or hidden states ``[batch, length, n]`` that predict answer tokens, and those tokens.

    Returns:
        ``[answers, n], [answers]``.
    """
    tokens = labels[:, 1:]
    mask = tokens != IGNORE
    return states[:, :-1][mask], torch.masked_select(tokens, mask)
