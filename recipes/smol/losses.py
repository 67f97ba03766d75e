"""Losses of the pair smol, on packed rows and on patches with names."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from recipes.smol.sight import Sight
from recipes.toy.packed_losses import packed_states
from specllava.distill.config import Objective
from specllava.distill.losses import (
    IGNORE,
    Batch,
    Losses,
    answer_positions,
    chunked_cross_entropy,
    chunked_loss,
)
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.family import tower_features


def naming_losses(sight: Sight, batch: Batch, model: LlavaForConditionalGeneration) -> Losses:
    """Return how far projected patches are from the embeddings of their words, as a share of their variance."""
    with torch.no_grad():
        features = tower_features(model, batch["pixel_values"].to(model.dtype)).float()
        words = model.get_input_embeddings()(batch["words"]).float().sum(-2) / batch["words"].shape[-1] ** 0.5
    return {"loss": F.mse_loss(sight.projector(features).float(), words) / words.var()}


def talking_losses(sight: Sight, batch: Batch, model: LlavaForConditionalGeneration, objective: Objective) -> Losses:
    """Return cross-entropy of all answers, and KL(language model that reads the truth ‖ model) of its own answers.

    ``drift`` is KL(language model ‖ model) on plain English without a picture: its English shall stay what it was.
    """
    states = packed_states(model, batch, model)[-1]
    facts = _fact_loss(model, batch, states, objective)
    if "texts" not in batch:
        return {"loss": facts, "facts": facts}
    decoder = model.get_decoder()
    with torch.no_grad(), sight.without_adapters():
        read = decoder(input_ids=batch["texts"], use_cache=False)[0]
        before = decoder(input_ids=batch["plain"], use_cache=False)[0]
        theirs, known = answer_positions(read, batch["text_labels"])
    ours, tokens = answer_positions(states, batch["own"])
    assert torch.equal(known, tokens)
    own, kl = chunked_loss(ours, model.lm_head, theirs, model.lm_head, tokens, objective)
    now = decoder(input_ids=batch["plain"], use_cache=False)[0]
    rows = (now.flatten(0, 1), model.lm_head, before.flatten(0, 1), model.lm_head, batch["plain"].flatten())
    drift, _ = chunked_loss(*rows, replace(objective, kl_weight=1.0))
    return {"loss": facts + own + drift, "facts": facts, "own": own, "kl": kl, "drift": drift}


def fact_losses(
    model: LlavaForConditionalGeneration | DraftLlava,
    batch: Batch,
    tower_model: LlavaForConditionalGeneration,
    objective: Objective,
) -> Losses:
    """Return cross-entropy of the answers to questions of fact, for a model that learns with all its weights."""
    return {"loss": _fact_loss(model, batch, packed_states(model, batch, tower_model)[-1], objective)}


def _fact_loss(
    model: LlavaForConditionalGeneration | DraftLlava, batch: Batch, states: Tensor, objective: Objective
) -> Tensor:
    labels = torch.where(batch["own"] == IGNORE, batch["labels"], IGNORE)
    predicting, tokens = answer_positions(states, labels)
    return chunked_cross_entropy(predicting, model.lm_head, tokens, objective.chunk)
