"""What models expect at every place of an answer that is there already: one pass each, no decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specllava.findings.reading import Reading
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt


@torch.inference_mode()
def expectations(model: PreTrainedModel, prompt: Prompt, answer: Sequence[int]) -> Tensor:
    """Log-probabilities ``[answer, vocab]`` in float64: row ``i`` is for token ``i``, all tokens before it being read.

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


def reading(draft: Tensor, target: Tensor, answer: Sequence[int]) -> Reading:
    """The draft on an answer, of the :func:`expectations` of both models, ``[answer, vocab]`` each."""
    chances = target.exp()
    entropies = torch.special.entr(draft.exp()).sum(-1)
    said = torch.tensor(list(answer), device=draft.device)
    # A token that the target rules out adds nothing, though the draft may give it no chance either.
    divergences = torch.where(chances > 0, chances * (target - draft), 0.0).sum(-1)
    return Reading(
        entropies=tuple(entropies.tolist()),
        probs=tuple(draft.gather(-1, said[:, None])[:, 0].exp().tolist()),
        guesses=tuple(draft.argmax(-1).tolist()),
        divergences=tuple(divergences.clamp_min(0.0).tolist()),  # rounding may leave it a hair below
    )
