"""Losses of target and draft on packed rows of the toy corpus: the answers, and hints at what the picture shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlavaForConditionalGeneration
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from recipes.toy.corpus import packed_mask
from recipes.toy.hints import Hints, naming_loss
from recipes.toy.recipe import ToyRecipe
from specllava.distill.losses import IGNORE, Batch, Losses, answer_positions
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.family import tower_features
from specllava.prompt import merge_features

PackedLosses = Callable[[Any, Batch], Losses]


def target_losses(recipe: ToyRecipe, content: Sequence[int], hints: Hints | None = None) -> PackedLosses:
    """Return a target's loss function for packed rows: the answers, and the hints of :mod:`recipes.toy.hints`.

    Args:
        content: tokens with weight ``recipe.content_weight`` in the answers.
        hints: words of questions, for :func:`finding_loss` and :func:`quoting_losses`; without it neither. What decides
            between "Yes" and "No" weighs ``recipe.judging_weight`` times as much then: few tokens do.
    """
    weight = torch.ones(recipe.vocabulary)
    weight[list(content)] = recipe.content_weight
    if hints is not None:
        weight[[hints.yes, hints.no]] *= recipe.judging_weight

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
        each = F.cross_entropy(cells, wanted, reduction="none")
        if hints is not None:
            judged = isin(batch["words"], hints.judged)
            each = torch.where(judged[referring], recipe.judging_weight * each, each)
        gathering = each.sum() / max(1, len(wanted))
        loss = answers + recipe.naming_weight * naming + recipe.gathering_weight * gathering
        parts = {"answers": answers, "naming": naming, "gathering": gathering}
        if hints is not None:
            parts["finding"] = finding_loss(model, layers[0], batch, hints.shown)
            parts["quoting"], parts["repeating"] = quoting_losses(model, recipe, layers, batch, hints)
            loss = loss + recipe.finding_weight * sum(parts[name] for name in ("finding", "quoting", "repeating"))
        return {"loss": loss, **parts}

    return losses


def finding_loss(model: LlavaForConditionalGeneration, embeds: Tensor, batch: Batch, shown: dict[int, int]) -> Tensor:
    """Return how little of the first head's attention in the first layer goes from words to the slots that show them.

    Mean over the words in questions that a slot shows, in nats: ``-log`` of these slots' share of all slots. Without it
    a target hardly learns to find an object by its kind or colour, since descriptions name positions first.

    Args:
        embeds: ``[batch, length, hidden]``, what the first layer reads.
        shown: token of a word: token that its slots are named by.
    """
    words, slots = batch["words"], batch["input_ids"].eq(model.config.image_token_id)
    queries, keys = first_head(model, 0, embeds, batch)
    names = torch.full_like(words, -1)
    for word, name in shown.items():
        names[words.eq(word)] = name
    right = names[:, :, None, None].eq(batch["patch_names"][:, None]).any(-1)  # [batch, length, slots]
    rows, columns = right.any(-1).nonzero(as_tuple=True)
    keys = keys[slots].unflatten(0, (len(words), -1))[rows]  # [words in questions, slots, size]
    return missed_attention(queries[rows, columns], keys, right[rows, columns])


def quoting_losses(
    model: LlavaForConditionalGeneration, recipe: ToyRecipe, states: Sequence[Tensor], batch: Batch, hints: Hints
) -> tuple[Tensor, Tensor]:
    """Return how little a head looks for the words of questions that the next token of an answer needs.

    That is a word of looks that it repeats, of any question in the conversation; and before an answer's "Yes" or "No"
    the words of looks and scenery in this question. Without it a target names the commonest object where it should
    repeat the one that it is asked for, and says "Yes" to everything.

    Args:
        states: ``[batch, length, hidden]`` each, what every layer reads.

    Returns:
        ``-log`` of these words' share of the attention on questions, in the first head of the layer that reads the
        gathered states; and the cross-entropy of the next token, read from that layer's output. Means in nats.
    """
    words, labels, segments = batch["words"], batch["labels"], batch["segments"]
    number = recipe.gathering_layers
    queries, keys = first_head(model, number, states[number], batch)
    following = F.pad(labels[:, 1:], (0, 1), value=IGNORE)
    looks, decisive = isin(words, hints.looks), isin(words, {*hints.looks, *hints.scenery})
    judged = (following.eq(hints.yes) | following.eq(hints.no)) & labels.eq(IGNORE)
    asked = (segments[:, None, :].eq(segments[:, :, None]) & labels.eq(IGNORE)[:, None, :]).tril()
    turns = labels.eq(IGNORE).logical_and(F.pad(labels[:, :-1], (1, 0), value=IGNORE) != IGNORE).cumsum(-1)
    quoted = looks[:, None, :] & words[:, None, :].eq(following[:, :, None])  # [batch, length, length]
    judging = judged[:, :, None] & decisive[:, None, :] & turns[:, None, :].eq(turns[:, :, None])
    right = asked & (quoted | judging)
    rows, columns = right.any(-1).nonzero(as_tuple=True)
    missed = missed_attention(queries[rows, columns], keys[rows], right[rows, columns], asked[rows, columns])
    read = model.model.language_model.norm(states[number + 1][rows, columns])
    each = F.cross_entropy(model.lm_head(read).float(), following[rows, columns], reduction="none")
    named = torch.where(judged[rows, columns], recipe.judging_weight * each, each).sum()
    return missed, named / max(1, len(rows))


def isin(ids: Tensor, tokens: set[int]) -> Tensor:
    """Return which ids are among the tokens."""
    return torch.isin(ids, torch.tensor(sorted(tokens), device=ids.device))


def first_head(
    model: LlavaForConditionalGeneration, number: int, states: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Return rotated queries and keys ``[batch, length, size]`` of the first head of layer ``number``."""
    decoder = model.get_decoder()
    layer = decoder.layers[number]
    states, size = layer.input_layernorm(states), layer.self_attn.head_dim
    heads = (states @ proj.weight[:size].T for proj in (layer.self_attn.q_proj, layer.self_attn.k_proj))
    turn = decoder.rotary_emb(states, batch["position_ids"])
    queries, keys = (head[:, 0] for head in apply_rotary_pos_emb(*(head[:, None] for head in heads), *turn))
    return queries, keys


def missed_attention(queries: Tensor, keys: Tensor, right: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return the mean ``-log`` of the share of attention on right keys, in nats; 0 without queries.

    Args:
        queries, keys: ``[queries, size]``, ``[queries, keys, size]``.
        right, seen: ``[queries, keys]``, the right keys, and those that share the attention; default: all.
    """
    scores = torch.einsum("ph,psh->ps", queries, keys) / math.sqrt(queries.shape[-1])
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    there = scores.masked_fill(~right, -torch.inf).logsumexp(-1)
    return (scores.logsumexp(-1) - there).sum() / max(1, len(queries))


def draft_losses(draft: DraftLlava, batch: Batch, tower_model: LlavaForConditionalGeneration, scenery: float) -> Losses:
    """Return a draft's losses on packed rows: the answers, and the words of the slots *before* its first layer.

    A draft may have one layer only, which gathers the slots' states, so these must encode words already.

    Args:
        tower_model: the model whose vision tower the draft shares.
        scenery: weight of a slot without an object.
    """
    layers = packed_states(draft, batch, tower_model)
    predicting, words = answer_positions(layers[-1], batch["labels"])  # [answers, hidden], [answers]
    answers = F.cross_entropy(draft.lm_head(predicting).float(), words)
    slots = batch["input_ids"].eq(draft.config.image_token_id)
    read = draft.model.language_model.norm(layers[0][slots])  # [slots, hidden]
    naming = naming_loss(draft.lm_head(read), batch["patch_names"].flatten(0, 1), scenery)
    return {"loss": answers + naming, "answers": answers, "naming": naming}


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
        attention_mask=packed_mask(batch["segments"], embeds.dtype),
        position_ids=batch["position_ids"],
        use_cache=False,
        output_hidden_states=True,
    ).hidden_states
    return states
