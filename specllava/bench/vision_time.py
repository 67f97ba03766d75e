"""The time of the vision towers, measured anew in every round: the lanes of this project share one pass of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from specllava.models.checkpoints.language_model import input_device
from specllava.models.families.family import family_of
from specllava.models.families.interface import Picture
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.timing import now


@torch.inference_mode()
def with_vision_time(pair: Pair, prompt: Prompt) -> Prompt:
    """Return the prompt with the seconds of encoding its pictures now; the features stay.

    Those of the draft's prompt count where the target's pass does not serve it: a tower of its own.
    """
    timed = replace(prompt, vision_seconds=_seconds(pair.target, prompt.pictures))
    own = prompt.draft_prompt
    if own is None or pair.draft is None:
        return timed
    new = [one for key, one in zip(own.image_keys, own.pictures, strict=True) if key not in prompt.image_keys]
    reader = pair.target if pair.draft_processor is None else pair.draft
    return replace(timed, draft_prompt=replace(own, vision_seconds=_seconds(reader, new)))


def _seconds(model: PreTrainedModel, pictures: Sequence[Picture]) -> float:
    if not pictures:
        return 0.0
    device = input_device(model)
    started = now(device)
    family_of(model.config).encode(model, pictures)
    return now(device) - started
