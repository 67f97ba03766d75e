"""Losses of target and draft on packed rows of the toy corpus: the answers, and hints at what the picture shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from recipes.toy.hints import NAMES, naming_loss
from recipes.toy.packing import packed_mask
from recipes.toy.recipe import ToyRecipe
from specllava.distill.losses import IGNORE, Batch, Losses, answer_positions
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.family import tower_features
from specllava.prompt import merge_features

PackedLosses = Callable[[Any, Batch], Losses]


def target_losses(recipe: ToyRecipe, content: Sequence[int]) -> PackedLosses:
    """Return a target's loss function for packed rows: the answers, and both hints of :mod:`recipes.toy.hints`.

    Args:
        content: tokens with weight ``recipe.content_weight`` in the answers.
    """
    weight = torch.ones(recipe.vocabulary)
    weight[list(content)] = recipe.content_weight

    def losses(model: LlavaForConditionalGeneration, batch: Batch) -> Losses:
        layers = packed_states(model, batch, model)
        predicting, words = answer_positions(layers[-1], batch["labels"])  # [answers, hidden], [answers]
        answers = F.cross_entropy(model.lm_head(predicting).float(), words, weight.to(words.device))
        slots = batch["input_ids"].eq(model.config.image_token_id)
        names = batch["patch_names"].flatten(0, 1)
        naming = naming_loss(model.lm_head(layers[-1][slots]), names, recipe.scenery_weight)
        gathered = model.model.language_model.norm(layers[recipe.gathering_layers])
        referring = batch["cells"] != IGNORE
        wanted = batch["cells"][referring]
        cells = model.lm_head(gathered[referring]).float()  # [referring, vocab]
        gathering = F.cross_entropy(cells, wanted, reduction="sum") / max(1, len(wanted))
        loss = answers + recipe.naming_weight * naming + recipe.gathering_weight * gathering
        return {"loss": loss, "answers": answers, "naming": naming, "gathering": gathering}

    return losses


def draft_losses(
    draft: DraftLlava, batch: Batch, tower_model: LlavaForConditionalGeneration, scenery: float
) -> Losses:
    """Return a draft's losses on packed rows: the answers, and the words of the slots *before* its first layer.

    A draft may have one layer only, which gathers the slots' states, so these must encode words already.

    Args:
        tower_model: the model whose vision tower the draft shares.
        scenery: weight of a slot without an object.
    """
    layers = packed_states(draft, batch, tower_model)
    predicting, words = answer_positions(layers[-1], batch["labels"])  # [answers, hidden], [answers]
    answers = F.cross_entropy(draft.lm_head(predicting).float(), words)
    naming = slot_loss(draft, layers[0], batch, scenery)
    return {"loss": answers + naming, "answers": answers, "naming": naming}


def slot_loss(draft: DraftLlava, embeds: Tensor, batch: Batch, scenery: float) -> Tensor:
    """Return the loss of the words for what slots show, read from ``embeds [batch, length, hidden]``."""
    slots = batch["input_ids"].eq(draft.config.image_token_id)
    read = draft.model.language_model.norm(embeds[slots])  # [slots, hidden]
    return naming_loss(draft.lm_head(read), batch["patch_names"][..., :NAMES].flatten(0, 1), scenery)


def packed_states(
    model: LlavaForConditionalGeneration | DraftLlava, batch: Batch, tower_model: LlavaForConditionalGeneration
) -> tuple[Tensor, ...]:
    """Return hidden states ``[batch, length, hidden]`` of packed rows: the embeddings, then after each layer.

    Args:
        tower_model: the model whose vision tower encodes the pictures.
    """
    with torch.no_grad():
        features = tower_features(tower_model, batch["pixel_values"].to(tower_model.dtype))
    embeds = merge_features(model, batch["input_ids"], features)
    states: tuple[Tensor, ...] = model.get_decoder()(
        inputs_embeds=embeds,
        attention_mask=packed_mask(batch["segments"]),
        position_ids=batch["position_ids"],
        use_cache=False,
        output_hidden_states=True,
    ).hidden_states
    return states
