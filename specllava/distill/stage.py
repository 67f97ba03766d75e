"""The training stage of a draft on its target, shared by the toy recipe and the ``distill`` command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from specllava.distill.config import FeatureObjective, LoopConfig, Objective
from specllava.distill.feature_losses import TargetTexts, feature_losses
from specllava.distill.loop import Batch, Losses, TrainingCallback, TrainingLog, fit
from specllava.distill.losses import IGNORE, answer_positions, chunked_cross_entropy, chunked_loss
from specllava.distill.pictures import batch_pictures
from specllava.engine.engine import Engine
from specllava.models.drafts.draft_vlm import vision_source
from specllava.models.drafts.eagle import LAST, FeatureDraft
from specllava.models.families.family import family_of
from specllava.models.families.interface import Features, ImageFeatures
from specllava.prompt import compressor_of, kept_slots, merge_features, projector_weights, to_device


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
    """Train ``draft``, as :func:`fit` does; parameters that need no gradient are unchanged.

    Args:
        draft: takes the target's features, or no picture at all; with a :class:`FeatureObjective`, the target's states.
        target: in evaluation mode, on the accelerator's device.
        batches: batch number to ``input_ids`` and ``labels`` ``[batch, length]``. With pictures also ``image_sizes``
            ``[images, 2]``, in the order of their slots, and :func:`batch_entries`. Where each is one square,
            ``pixel_values`` ``[images, 3, height, width]`` in their stead. ``images`` ``[batch]`` counts those of each
            row, where the target reads rows one by one.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    target.requires_grad_(False)
    draft.train()
    losses: Callable[[Any, Batch], Losses]
    if isinstance(objective, FeatureObjective):
        losses = feature_draft_losses(target, objective)
    else:
        losses = draft_model_losses(target, objective)
    return fit(name, draft, losses, batches, loop, directory, accelerator, callback, answer_tokens)


def answer_tokens(batch: Batch) -> int:
    """Count the answer tokens of a batch: its weight in a step's mean."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


def draft_model_losses(target: PreTrainedModel, objective: Objective) -> Callable[[PreTrainedModel, Batch], Losses]:
    """Return the loss function of :class:`Objective`, which computes the target's distributions only where needed."""

    def losses(model: PreTrainedModel, batch: Batch) -> Losses:
        ids, labels = batch["input_ids"], batch["labels"]
        with torch.no_grad():
            features = _features(target, batch)
        seen = None if vision_source(model) == "none" else _stack(target, features)
        own_ids, own_labels = ids, labels
        if vision_source(model) == "none":
            own_ids, own_labels = keep_tokens(ids, labels, ids != target.config.image_token_id)
        elif compressor_of(model) is not None:
            own_ids, own_labels = keep_tokens(ids, labels, kept_slots(model, ids, seen))
        ours, tokens = answer_positions(chat_states(model, own_ids, seen), own_labels)
        if objective.kl_weight == 0:
            return {"loss": chunked_cross_entropy(ours, model.lm_head, tokens, objective.chunk)}
        with torch.no_grad():
            theirs, _ = answer_positions(target_texts(target, batch, features=features).last, labels)
        loss, kl = chunked_loss(ours, model.lm_head, theirs, target.lm_head, tokens, objective)
        return {"loss": loss, "kl": kl}

    return losses


def feature_draft_losses(
    target: PreTrainedModel, objective: FeatureObjective
) -> Callable[[FeatureDraft, Batch], Losses]:
    """Return the loss function of :class:`FeatureObjective`; the target runs in it, frozen."""

    def losses(draft: FeatureDraft, batch: Batch) -> Losses:
        with torch.no_grad():
            texts = target_texts(target, batch, draft.config.state_layers)
        return feature_losses(draft, texts, objective)

    return losses


def target_texts(
    target: PreTrainedModel,
    batch: Batch,
    layers: Sequence[int] = LAST,
    features: Sequence[ImageFeatures] | None = None,
) -> TargetTexts:
    """Return a batch's texts as the target reads them in decoding, with its states of ``layers``.

    Args:
        layers: numbered as transformers does.
        features: of the batch's pictures, if they are known.
    """
    features = _features(target, batch) if features is None else features
    ids, labels, family = batch["input_ids"], batch["labels"], family_of(target.config)
    if family.position_rows == 1 and not family.bidirectional:
        embeds = merge_features(target, ids, _stack(target, features))
        output = target.get_decoder()(inputs_embeds=embeds, use_cache=False, output_hidden_states=tuple(layers) != LAST)
        last: Tensor = output.last_hidden_state
        states = last if tuple(layers) == LAST else torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)
        return TargetTexts(ids, labels, embeds, states, last)
    left = iter(features)  # pictures give each row of the batch positions or a mask of its own
    counts = batch["images"].tolist() if features else [0] * len(ids)
    shown = [_stack(target, list(islice(left, count))) for count in counts]
    embeds = torch.cat([merge_features(target, row[None], own) for row, own in zip(ids, shown, strict=True)])
    known = torch.stack([_states(target, row, own, layers) for row, own in zip(ids, shown, strict=True)])
    width = target.config.get_text_config().hidden_size
    return TargetTexts(ids, labels, embeds, known[..., :-width], known[..., -width:])


def _states(target: PreTrainedModel, ids: Tensor, features: Features | None, layers: Sequence[int]) -> Tensor:
    """Return the states of ``layers`` and the last ones of a text ``[length]``: ``[length, (layers + 1) * hidden]``."""
    states = Engine.of(target, len(ids), (*layers, *LAST)).prefill(ids[None], features).states
    assert states is not None
    return states


def chat_states(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Return a draft's last hidden states ``[batch, length, hidden]``.

    Padding is on the right, so causal attention needs no mask for it. Projector and compressor are part of the graph
    even where there is no picture. Several processes expect a gradient for every weight from each of them.
    """
    embeds = merge_features(model, input_ids, features)
    unread = list((compressor_of(model) or nn.Identity()).parameters())
    if features is None and vision_source(model) != "none":
        unread += projector_weights(model)
    if unread:
        embeds = embeds + 0.0 * torch.stack([one.sum() for one in unread]).sum()
    states: Tensor = model.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return states


def keep_tokens(input_ids: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens and labels that are ``kept``, all ``[batch, length]``: a draft may read fewer image slots."""
    own_ids, own_labels = ([row[keep] for row, keep in zip(rows, kept, strict=True)] for rows in (input_ids, labels))
    return pad_sequence(own_ids, batch_first=True), pad_sequence(own_labels, batch_first=True, padding_value=IGNORE)


def _features(target: PreTrainedModel, batch: Batch) -> list[ImageFeatures]:
    """Return the features that the target's tower makes of the batch's pictures."""
    if "image_sizes" not in batch:
        return []
    pictures = [to_device(one, target, target.device) for one in batch_pictures(batch)]
    return family_of(target.config).encode(target, pictures)


def _stack(target: PreTrainedModel, features: Sequence[ImageFeatures]) -> Features | None:
    return family_of(target.config).stack(features) if features else None
