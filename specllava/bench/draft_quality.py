"""KL and agreement of a draft on the target's own answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from specllava.findings.ablation import DraftScores
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.scoring import draft_log_probs, score_draft, teacher_forced_log_probs


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """Means over the tokens of some answers.

    Args:
        divergence: KL(target ‖ draft) in nats.
        agreement: share of tokens at which the draft's best guess is the target's choice.
    """

    divergence: float
    agreement: float
    tokens: int


@torch.inference_mode()
def draft_scores(pair: Pair, prompt: Prompt, answer: Sequence[int]) -> DraftScores:
    """Run both models over an answer of the target and score the draft on it.

    Raises:
        ValueError: the pair has no draft.
    """
    if pair.draft is None:
        raise ValueError(f"the pair {pair.name} has no draft to be judged: name one with --draft")
    ours = draft_log_probs(pair.target, pair.draft, prompt, answer)
    return score_draft(ours, teacher_forced_log_probs(pair.target, prompt, answer), answer)


def draft_quality(pair: Pair, answers: Iterable[tuple[Prompt, tuple[int, ...]]]) -> DraftQuality:
    """Return the means over answers of the target, at least one.

    Raises:
        ValueError: the pair has no draft.
    """
    divergences: list[float] = []
    agreed = 0
    for prompt, answer in answers:
        scores = draft_scores(pair, prompt, answer)
        divergences += scores.divergences
        agreed += sum(guess == token for guess, token in zip(scores.guesses, answer, strict=True))
    count = len(divergences)
    return DraftQuality(math.fsum(divergences) / count, agreed / count, count)
