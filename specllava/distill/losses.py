"""Losses of language-model training and distillation: tensors in, scalars out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100


def next_token_loss(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the next token over positions that carry a label, in nats.

    Args:
        logits: ``[batch, length, vocab]``.
        labels: ``[batch, length]`` token ids; ``IGNORE`` marks what is not to be learnt.
        weight: ``[vocab]``, how much each token counts in the mean; all the same without it.
    """
    kept, wanted = _answer_positions(logits, labels)
    return F.cross_entropy(kept.float(), wanted, weight)


def distillation_loss(draft: Tensor, target: Tensor, labels: Tensor, kl_weight: float) -> tuple[Tensor, Tensor]:
    """``(1 - w) CE + w KL(target || draft)`` over answer tokens (Spec-LLaVA, arXiv 2509.11961), and the KL alone.

    Args:
        draft, target: logits ``[batch, length, vocab]`` for the same tokens.
        labels: ``[batch, length]`` token ids, ``IGNORE`` elsewhere.
        kl_weight: ``w`` in [0, 1].
    """
    kept, wanted = _answer_positions(draft, labels)  # [answers, vocab], [answers]
    taught, _ = _answer_positions(target, labels)
    ours = F.log_softmax(kept.float(), dim=-1)
    theirs = F.log_softmax(taught.float(), dim=-1)
    kl = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    return (1 - kl_weight) * F.nll_loss(ours, wanted) + kl_weight * kl, kl.detach()


def _answer_positions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits that predict an answer token, and that token: ``[answers, vocab], [answers]``."""
    wanted = labels[:, 1:]
    mask = wanted != IGNORE
    return logits[:, :-1][mask], torch.masked_select(wanted, mask)
