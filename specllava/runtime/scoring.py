"""Scoring of models on a given answer: one teacher-forced pass each, no decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specllava.findings.draft_scores import DraftScores
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt


@torch.inference_mode()
def teacher_forced_log_probs(model: PreTrainedModel, prompt: Prompt, answer: Sequence[int]) -> Tensor:
    """Return log-probabilities ``[answer, vocab]`` in float64: row ``i`` predicts token ``i`` from all tokens before.

    Raises:
        ValueError: an empty answer.
    """
    if not answer:
        raise ValueError("there is no answer to read: it has 0 tokens")
    engine = Engine(model, prompt.length + len(answer))
    rows = [engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits[None]]
    if len(answer) > 1:
        rows.append(engine.forward(PassInput(answer[:-1])).logits)
    return torch.log_softmax(torch.cat(rows).double(), dim=-1)


def score_draft(draft: Tensor, target: Tensor, answer: Sequence[int]) -> DraftScores:
    """Score a draft on an answer, from both models' :func:`teacher_forced_log_probs` ``[answer, vocab]``."""
    target_probs = target.exp()
    entropies = torch.special.entr(draft.exp()).sum(-1)
    tokens = torch.tensor(list(answer), device=draft.device)
    # A token of target probability 0 adds nothing, even where the draft's is 0 too.
    divergences = torch.where(target_probs > 0, target_probs * (target - draft), 0.0).sum(-1)
    return DraftScores(
        entropies=tuple(entropies.tolist()),
        probs=tuple(draft.gather(-1, tokens[:, None])[:, 0].exp().tolist()),
        guesses=tuple(draft.argmax(-1).tolist()),
        divergences=tuple(divergences.clamp_min(0.0).tolist()),  # rounding may leave it a hair below
    )
