"""The training stage of a draft on its target, shared by the toy recipe and the ``distill`` command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from specllava.distill.config import FeatureObjective, LoopConfig, Objective
from specllava.distill.feature_losses import TaughtTexts, feature_losses
from specllava.distill.loop import Batch, Losses, TrainingCallback, TrainingLog, fit
from specllava.distill.losses import IGNORE, answer_positions, chunked_cross_entropy, chunked_loss
from specllava.models.draft_classes import vision_source
from specllava.models.family import Features, shared_tower_of, tower_features
from specllava.models.feature_config import LAST
from specllava.models.feature_draft import FeatureDraft
from specllava.models.vision import compressor_of, kept_slots, merge_features, split_by_image


def distil(
    name: str,
    draft: PreTrainedModel,
    target: PreTrainedModel,
    batches: Callable[[int], Batch],
    objective: Objective | FeatureObjective,
    loop: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
    callback: TrainingCallback | None = None,
) -> TrainingLog:
    """Train ``draft`` in place, as :func:`fit` does; parameters that need no gradient are unchanged.

    Args:
        draft: takes the target's features, or no picture at all; with a :class:`FeatureObjective`, the target's states.
        target: in evaluation mode, on the accelerator's device.
        batches: batch number to ``input_ids`` and ``labels`` ``[batch, length]`` and, of the pictures in the order of
            their slots, ``image_sizes`` ``[images, 2]`` and either ``pixel_values`` ``[tiles, 3, height, width]`` or
            ``features`` ``[tiles, patches, vision_hidden]``; none of them if no row of the batch has a picture.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    target.requires_grad_(False)
    draft.train()
    losses: Callable[[Any, Batch], Losses]
    if isinstance(objective, FeatureObjective):
        losses = state_losses(target, objective)
    else:
        losses = taught_losses(target, objective)
    return fit(name, draft, losses, batches, loop, directory, accelerator, callback, answer_tokens)


def answer_tokens(batch: Batch) -> int:
    """Count the answer tokens of a batch: its weight in a step's mean."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


def taught_losses(target: PreTrainedModel, objective: Objective) -> Callable[[PreTrainedModel, Batch], Losses]:
    """Return the loss function of :class:`Objective`, which computes the target's distributions only where needed."""

    def losses(model: PreTrainedModel, batch: Batch) -> Losses:
        ids, labels = batch["input_ids"], batch["labels"]
        with torch.no_grad():
            features = _features(target, batch)
        seen = None if vision_source(model) == "none" else features
        own_ids, own_labels = ids, labels
        if vision_source(model) == "none":
            own_ids, own_labels = keep_tokens(ids, labels, ids != target.config.image_token_id)
        elif compressor_of(model) is not None:
            own_ids, own_labels = keep_tokens(ids, labels, kept_slots(model, ids, features))
        ours, tokens = answer_positions(chat_states(model, own_ids, seen), own_labels)
        if objective.kl_weight == 0:
            return {"loss": chunked_cross_entropy(ours, model.lm_head, tokens, objective.chunk)}
        with torch.no_grad():
            theirs, _ = answer_positions(chat_states(target, ids, features), labels)
        loss, kl = chunked_loss(ours, model.lm_head, theirs, target.lm_head, tokens, objective)
        return {"loss": loss, "kl": kl}

    return losses


def state_losses(target: PreTrainedModel, objective: FeatureObjective) -> Callable[[FeatureDraft, Batch], Losses]:
    """Return the loss function of :class:`FeatureObjective`; the target runs in it, frozen."""

    def losses(draft: FeatureDraft, batch: Batch) -> Losses:
        with torch.no_grad():
            texts = taught_texts(target, draft.config.state_layers, batch)
        return feature_losses(draft, texts, objective)

    return losses


def taught_texts(target: PreTrainedModel, layers: Sequence[int], batch: Batch) -> TaughtTexts:
    """Return a batch's texts with the target's states of ``layers``, numbered as transformers does."""
    embeds = merge_features(target, batch["input_ids"], _features(target, batch))
    output = target.get_decoder()(inputs_embeds=embeds, use_cache=False, output_hidden_states=tuple(layers) != LAST)
    last: Tensor = output.last_hidden_state
    states = last if tuple(layers) == LAST else torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)
    return TaughtTexts(batch["input_ids"], batch["labels"], embeds, states, last)


def chat_states(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Return the last hidden states ``[batch, length, hidden]``.

    Padding is on the right, so causal attention needs no mask for it. Projector and compressor are part of the graph
    even where there is no picture: several processes expect a gradient for every weight from each of them.
    """
    embeds = merge_features(model, input_ids, features)
    unread = list((compressor_of(model) or nn.Identity()).parameters())
    if features is None and vision_source(model) != "none":
        unread += shared_tower_of(model.config).projector(model)
    if unread:
        embeds = embeds + 0.0 * torch.stack([one.sum() for one in unread]).sum()
    states: Tensor = model.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return states


def keep_tokens(input_ids: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens and labels that are ``kept``, all ``[batch, length]``: a draft may read fewer image slots."""
    own_ids, own_labels = ([row[keep] for row, keep in zip(rows, kept, strict=True)] for rows in (input_ids, labels))
    return pad_sequence(own_ids, batch_first=True), pad_sequence(own_labels, batch_first=True, padding_value=IGNORE)


def _features(target: PreTrainedModel, batch: Batch) -> Features | None:
    """Return the features of the batch's pictures, from the cached states or from the target's vision tower."""
    if "image_sizes" not in batch:
        return None
    states = batch.get("features")
    if states is None:
        states = tower_features(target, batch["pixel_values"].to(target.dtype))
    sizes = [(height, width) for height, width in batch["image_sizes"].tolist()]
    return shared_tower_of(target.config).stack(split_by_image(target, states, sizes))
