"""The one stage in which a draft learns from its target: what the toy recipe and the ``distill`` command both run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from specllava.distill.config import LoopConfig, Objective
from specllava.distill.loop import Batch, Course, Losses, Watcher, fit
from specllava.distill.losses import IGNORE, answer_positions, chunked_cross_entropy, chunked_loss
from specllava.models.artefact import DraftLlava
from specllava.models.vision import merge_features, tower_features


def distil(
    name: str,
    draft: DraftLlava,
    target: LlavaForConditionalGeneration,
    batches: Callable[[int], Batch],
    objective: Objective,
    loop: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
    watch: Watcher | None = None,
) -> Course:
    """Teach ``draft`` in place, as :func:`fit` does; parameters that need no gradient stay as they are.

    Args:
        target: in evaluation mode, on the accelerator's device.
        batches: batch number to ``input_ids`` and ``labels`` ``[batch, length]`` and, in the order of the image
            slots, ``pixel_values`` ``[images, 3, height, width]`` or ``features`` ``[images, patches, vision_hidden]``;
            neither if no row of the batch has a picture.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    target.requires_grad_(False)
    losses = taught_losses(target, objective)
    return fit(name, draft, losses, batches, loop, directory, accelerator, watch, answers_in)


def answers_in(batch: Batch) -> int:
    """Answer tokens of a batch: what it weighs in a step's mean."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


def taught_losses(
    target: LlavaForConditionalGeneration, objective: Objective
) -> Callable[[LlavaForConditionalGeneration, Batch], Losses]:
    """The loss of :class:`Objective`; the target's distributions are computed as they are needed, or not at all."""

    def losses(model: LlavaForConditionalGeneration, batch: Batch) -> Losses:
        ids, labels = batch["input_ids"], batch["labels"]
        with torch.no_grad():
            features = _features(target, batch)
        ours, wanted = answer_positions(chat_states(model, ids, features), labels)
        if objective.kl_weight == 0:
            return {"loss": chunked_cross_entropy(ours, model.lm_head, wanted, objective.chunk)}
        with torch.no_grad():
            theirs, _ = answer_positions(chat_states(target, ids, features), labels)
        loss, kl = chunked_loss(ours, model.lm_head, theirs, target.lm_head, wanted, objective)
        return {"loss": loss, "kl": kl}

    return losses


def chat_states(model: LlavaForConditionalGeneration, input_ids: Tensor, features: Tensor | None) -> Tensor:
    """Last hidden states ``[batch, length, hidden]``.

    Padding is on the right, so causal attention needs no mask for it. The projector takes part even where there is
    no picture: several processes expect a gradient for every weight from each of them.
    """
    projector = model.model.multi_modal_projector
    if features is None:
        blank = torch.zeros(1, projector.linear_1.in_features, dtype=model.dtype, device=input_ids.device)
        embeds = merge_features(model, input_ids, None) + 0.0 * projector(blank).sum()
    else:
        embeds = merge_features(model, input_ids, features.to(model.dtype))
    states: Tensor = model.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return states


def _features(target: LlavaForConditionalGeneration, batch: Batch) -> Tensor | None:
    """Vision features ``[images, patches, vision_hidden]``: read, or computed by the target's tower."""
    if "features" in batch:
        return batch["features"]
    if "pixel_values" in batch:
        return tower_features(target, batch["pixel_values"].to(target.dtype))
    return None
