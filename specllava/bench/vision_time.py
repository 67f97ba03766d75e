"""The time of the vision towers, measured anew in every round: the lanes of this project share one pass of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from specllava.models.family import family_of
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.timing import now


@torch.inference_mode()
def with_vision_time(pair: Pair, prompt: Prompt) -> Prompt:
    """Return the prompt with the seconds of encoding its pictures now; the features stay."""
    timed = replace(prompt, vision_seconds=_seconds(pair.target, prompt))
    own = prompt.draft_prompt
    if own is not None and pair.draft is not None and pair.draft_processor is not None:
        seconds = _seconds(pair.draft, own)
        return replace(timed, draft_prompt=replace(own, vision_seconds=seconds))
    return timed


def _seconds(model: PreTrainedModel, prompt: Prompt) -> float:
    if prompt.features is None:
        return 0.0
    started = now(prompt.input_ids.device)
    family_of(model.config).encode(model, prompt.pictures)
    return now(prompt.input_ids.device) - started
