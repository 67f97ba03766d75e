"""Losses of a draft on a batch of texts that its target reads: cross-entropy and KL, or EAGLE's rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel

from specllava.distill.config import FeatureObjective, Objective
from specllava.engine.engine import Engine
from specllava.models.drafts.draft_vlm import vision_source
from specllava.models.drafts.eagle import LAST, FeatureDraft
from specllava.models.families import family_of
from specllava.models.family import Features, ImageFeatures
from specllava.prompt import compressed_slots, compressor_of, merge_features, projector_weights, to_device

IGNORE = -100
DECAY = 0.8  # weight of a rollout step against the one before
NOWHERE = -(2**20)  # token number of an entry that reads no token
Batch = dict[str, Any]  # tensors by name, and "pictures": those of each row
Losses = dict[str, Tensor]  # "loss" is minimised, the others are logged
Head = Callable[[Tensor], Tensor]  # hidden states [n, hidden] to logits [n, vocab]


@dataclass(frozen=True, slots=True)
class TargetTexts:
    """Texts as the target read them; padding is on the right and has no labels.

    Args:
        ids, labels: ``[batch, length]``; labels are ``IGNORE`` outside of answers.
        embeds: ``[batch, length, hidden]``, with projected picture features in image slots.
        states: of the layers that the draft reads, ``[batch, length, layers * hidden]``.
        last: hidden states that the target's head takes, ``[batch, length, hidden]``.
    """

    ids: Tensor
    labels: Tensor
    embeds: Tensor
    states: Tensor
    last: Tensor


def batch_losses(target: PreTrainedModel, objective: Objective | FeatureObjective) -> Callable[[Any, Batch], Losses]:
    """Return the loss function of a draft, in which the frozen target runs.

    A batch has ``input_ids`` and ``labels`` ``[batch, length]``. With pictures it also has ``pictures``, a list for
    each row in the order of the slots; or ``pixel_values`` ``[batch, 3, height, width]``, a square for each row, and
    their ``image_sizes`` ``[batch, 2]``.
    """
    if isinstance(objective, Objective):
        return partial(draft_model_losses, target=target, objective=objective)

    def losses(draft: FeatureDraft, batch: Batch) -> Losses:
        with torch.no_grad():
            texts = target_texts(target, batch, draft.config.state_layers)
        return feature_losses(draft, texts, objective)

    return losses


def count_answer_tokens(batch: Batch) -> int:
    """Count the answer tokens of a batch: its weight in a step's mean."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


def draft_model_losses(draft: PreTrainedModel, batch: Batch, target: PreTrainedModel, objective: Objective) -> Losses:
    """Compute :class:`Objective`; the target's distributions are computed only where they are needed."""
    ids, labels = batch["input_ids"], batch["labels"]
    with torch.no_grad():
        features = _encode_pictures(target, batch)
    seen = None if vision_source(draft) == "none" else _join(target, features)
    own_ids, own_labels = ids, labels
    if vision_source(draft) == "none":
        own_ids, own_labels = keep_tokens(ids, labels, ids != target.config.image_token_id)
    elif compressor_of(draft) is not None:
        own_ids, own_labels = keep_tokens(ids, labels, compressed_slots(draft, ids, seen))
    ours, tokens = answer_positions(draft_states(draft, own_ids, seen), own_labels)
    if objective.kl_weight == 0:
        return {"loss": chunked_cross_entropy(ours, draft.lm_head, tokens, objective.chunk)}
    with torch.no_grad():
        theirs, _ = answer_positions(target_texts(target, batch, features=features).last, labels)
    loss, kl = chunked_loss(ours, draft.lm_head, theirs, target.lm_head, tokens, objective)
    return {"loss": loss, "kl": kl}


def target_texts(
    target: PreTrainedModel,
    batch: Batch,
    layers: Sequence[int] = LAST,
    features: Sequence[list[ImageFeatures]] | None = None,
) -> TargetTexts:
    """Return a batch's texts as the target reads them in decoding, with its states of ``layers``.

    ``features`` are those of each row's pictures, if they are known.
    """
    features = _encode_pictures(target, batch) if features is None else features
    ids, labels, family = batch["input_ids"], batch["labels"], family_of(target.config)
    if family.position_rows == 1 and not family.bidirectional:
        embeds = merge_features(target, ids, _join(target, features))
        output = target.get_decoder()(inputs_embeds=embeds, use_cache=False, output_hidden_states=tuple(layers) != LAST)
        last: Tensor = output.last_hidden_state
        states = last if tuple(layers) == LAST else torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)
        return TargetTexts(ids, labels, embeds, states, last)
    # Pictures give each row positions or a mask of its own.
    rows = [(row[None], _join(target, [own])) for row, own in zip(ids, features, strict=True)]
    embeds = torch.cat([merge_features(target, *row) for row in rows])
    read = [Engine.of(target, ids.shape[1], (*layers, *LAST)).prefill(*row).states for row in rows]
    known = torch.stack([one for one in read if one is not None])  # [batch, length, (layers + 1) * hidden]
    width = target.config.get_text_config().hidden_size
    return TargetTexts(ids, labels, embeds, known[..., :-width], known[..., -width:])


def draft_states(draft: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Return a draft model's last hidden states ``[batch, length, hidden]``.

    Padding is on the right, so causal attention needs no mask for it. Projector and compressor are part of the graph
    even where there is no picture: several processes expect a gradient for every weight from each of them.
    """
    embeds = merge_features(draft, input_ids, features)
    unread = list((compressor_of(draft) or nn.Identity()).parameters())
    if features is None and vision_source(draft) != "none":
        unread += projector_weights(draft)
    if unread:
        embeds = embeds + _zero_with_gradients(unread)
    states: Tensor = draft.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
    return states


def keep_tokens(input_ids: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens and labels in a mask ``[batch, length]``: a draft may read fewer image slots."""
    own_ids, own_labels = ([row[keep] for row, keep in zip(rows, mask, strict=True)] for rows in (input_ids, labels))
    return _pad(own_ids), _pad(own_labels, IGNORE)


def _encode_pictures(target: PreTrainedModel, batch: Batch) -> list[list[ImageFeatures]]:
    """Return the features that the target's tower makes of each row's pictures."""
    rows = batch.get("pictures", [[]] * len(batch["input_ids"]))
    if "pixel_values" in batch:
        squares = zip(batch["pixel_values"].split(1), batch["image_sizes"].split(1), strict=True)
        rows = [[{"pixel_values": pixels, "image_sizes": size}] for pixels, size in squares]
    pictures = [to_device(picture, target, target.device) for row in rows for picture in row]
    encoded = iter(family_of(target.config).encode(target, pictures) if pictures else [])
    return [list(islice(encoded, len(row))) for row in rows]


def _join(target: PreTrainedModel, rows: Sequence[Sequence[ImageFeatures]]) -> Features | None:
    features = list(chain.from_iterable(rows))
    return family_of(target.config).stack(features) if features else None


def answer_positions(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Select of ``[batch, length, n]`` what predicts answer tokens, ``[answers, n]``, and these tokens."""
    tokens = labels[:, 1:]
    mask = tokens != IGNORE
    return states[:, :-1][mask], torch.masked_select(tokens, mask)


def chunked_loss(
    ours: Tensor, our_head: Head, theirs: Tensor, their_head: Head, tokens: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Compute the loss of :class:`Objective` from hidden states, in chunks.

    ``(1 - w) CE + w T² KL(target || draft)`` over answer tokens (Spec-LLaVA, arXiv 2509.11961).

    Args:
        ours, theirs: ``[answers, hidden]`` of draft and target, which predict ``tokens`` ``[answers]``.

    Returns:
        The loss, and KL(target ‖ draft) at temperature 1 in nats per token, detached.
    """

    temperature = objective.temperature

    def sums(ours: Tensor, theirs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the cross-entropy, the softened KL, and the KL at temperature 1 (equal where T is 1)."""
        logits, wanted = our_head(ours).float(), their_head(theirs).float()  # [n, vocab]
        ce = F.cross_entropy(logits, tokens, reduction="sum")
        kl = _kl(logits / temperature, wanted / temperature)
        if temperature == 1.0:
            return ce, kl, kl.detach()
        with torch.no_grad():
            return ce, kl, _kl(logits, wanted)

    ce, kl, plain_kl = sum_in_chunks(sums, (ours, theirs, tokens), objective.chunk, 3)
    count = len(tokens)
    softened = objective.kl_weight * objective.temperature**2
    return ((1 - objective.kl_weight) * ce + softened * kl) / count, plain_kl.detach() / count


def chunked_cross_entropy(ours: Tensor, our_head: Head, tokens: Tensor, chunk: int) -> Tensor:
    """Compute the mean cross-entropy alone, without a target, in chunks."""

    def sums(ours: Tensor, tokens: Tensor) -> tuple[Tensor]:
        return (F.cross_entropy(our_head(ours).float(), tokens, reduction="sum"),)

    (total,) = sum_in_chunks(sums, (ours, tokens), chunk, 1)
    return total / len(tokens)


def sum_in_chunks(
    sums: Callable[..., tuple[Tensor, ...]], rows: Sequence[Tensor], chunk: int, results: int
) -> list[Tensor]:
    """Add up the ``results`` that ``sums`` returns for at most ``chunk`` rows of all tensors at a time.

    Logits of a chunk are computed from its states, used, freed, and recomputed in the backward pass
    (``torch.utils.checkpoint``). Memory for them is about ``11 x 4 x chunk x vocab`` bytes, however many the answers.
    """
    totals = [rows[0].new_zeros((), dtype=torch.float32) for _ in range(results)]
    for start in range(0, len(rows[0]), chunk):
        part = checkpoint(
            sums, *(one[start : start + chunk] for one in rows), use_reentrant=False, preserve_rng_state=False
        )
        totals = [total + one for total, one in zip(totals, part, strict=True)]
    return totals


def _kl(ours: Tensor, theirs: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(ours, -1), F.log_softmax(theirs, -1), log_target=True, reduction="sum")


def attention_mask(step: int, roots: Tensor, entries: int, bias: Tensor | None) -> Tensor | None:
    """Return the attention mask of a rollout step; ``None`` is causal.

    The first step's, ``[batch, 1, entries, entries]``, is causal. Later ones are ``[batch, 1, chains, entries + step *
    chains]``. There a chain sees the entries up to the one that it begins with, and its own of each later step.

    Args:
        roots: numbers of the entries that chains begin with, ``[batch, chains]``.
        bias: weights of entries by a compressor's gate, ``[batch, entries]``.
    """
    if step == 0 and bias is None:
        return None
    chains = roots.shape[1]
    if step == 0:
        seen = torch.ones(entries, entries, dtype=torch.bool, device=roots.device).tril()[None]
    else:
        true = torch.arange(entries, device=roots.device) <= roots[..., None]  # [batch, chains, entries]
        own = torch.eye(chains, dtype=torch.bool, device=roots.device).expand(len(roots), -1, -1)
        seen = torch.cat([true, *[own] * step], dim=-1)
    if bias is None:
        return seen[:, None]
    return torch.where(seen, F.pad(bias, (0, seen.shape[-1] - bias.shape[1]))[:, None], -torch.inf)[:, None]


def feature_losses(draft: FeatureDraft, texts: TargetTexts, objective: FeatureObjective) -> dict[str, Tensor]:
    """Compute the loss of :class:`FeatureObjective` over the answer tokens.

    What the layers read in the first step comes from :meth:`FeatureDraft.entries`, as in decoding. An entry that reads
    token ``i`` predicts the target's state of that token, and token ``i + 1``. A later step reads the next true token
    with the state that the step before made; only steps that predict an answer token count.

    Returns:
        ``loss``, and two values of the first step. ``kl`` is KL(target ‖ draft) among the tokens that the draft can
        guess, in nats per token; ``features`` is the smooth L1 distance, not for ``eagle3``.
    """
    rows = [
        draft.entries(ids[1:], embeds[1:], known[:-1], question=asked)
        for ids, embeds, known, asked in zip(texts.ids, texts.embeds, texts.states, _questions(texts), strict=True)
    ]
    inputs = _pad([row.inputs for row in rows])  # [batch, entries, width]
    entries, bias, image = inputs.shape[1], _stack([row.bias for row in rows]), _stack([row.image for row in rows])
    positions = _pad([torch.tensor(row.positions) for row in rows]).to(inputs.device)
    read = _pad([torch.tensor(row.sources) for row in rows], -1).to(inputs.device) + 1  # token of each entry
    read = read.masked_fill(read < 1, NOWHERE)
    roots, cache = read, DynamicCache()
    loss = _zero_with_gradients([weight for weight in draft.parameters() if weight.requires_grad])
    shown: dict[str, Tensor] = {}
    for step in range(objective.rollout):
        own = draft(inputs, draft.rotations(positions), attention_mask(step, roots, entries, bias), cache)
        taught = _is_answer(texts.labels, read)
        parts = _step_losses(draft, own[taught], _at(texts.last, read)[taught], objective)
        loss = loss + DECAY**step * parts.pop("loss")
        shown = shown or {name: one.detach() for name, one in parts.items()}
        if step + 1 == objective.rollout:
            break
        if step == 0:
            reach = torch.stack([_is_answer(texts.labels, read + ahead) for ahead in range(1, objective.rollout)])
            roots = _pad([row.nonzero()[:, 0] for row in reach.any(dim=0)], -1)  # [batch, chains]
            own, positions = _at(own, roots), _at(positions, roots)
            read = _at(read, roots).masked_fill(roots < 0, NOWHERE)
        positions, read = positions + 1, read + 1
        tokens = draft.embed(_at(texts.ids, read))
        inputs = draft.inputs(tokens, own, guessed=True, image=None if image is None else image[:, None])
    return {"loss": loss, **shown}


def _questions(texts: TargetTexts) -> Tensor:
    """Return the target's states of the last token before each text's first answer, ``[batch, layers * hidden]``."""
    first = (texts.labels != IGNORE).int().argmax(dim=1)
    return _at(texts.states, first[:, None] - 1)[:, 0]


def _pad(rows: list[Tensor], filler: int = 0) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=filler)


def _stack(vectors: Sequence[Tensor | None]) -> Tensor | None:
    """Stack vectors, filled up with zeros; a missing one is zeros, and ``None`` is returned if all are missing."""
    some = next((one for one in vectors if one is not None), None)
    if some is None:
        return None
    return _pad([some.new_zeros(1) if one is None else one for one in vectors])


def _is_answer(labels: Tensor, read: Tensor) -> Tensor:
    """Return whether the token after the one that is read is an answer token, as ``read``."""
    there = (read >= 0) & (read + 1 < labels.shape[1])
    return there & (_at(labels, read + 1) != IGNORE)


def _at(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return items ``[batch, n, …]`` of each row ``[batch, length, …]``; any item for a number outside."""
    where = numbers.clamp(0, rows.shape[1] - 1)
    return rows.gather(1, where) if rows.dim() == 2 else rows.gather(1, where[..., None].expand(-1, -1, rows.shape[-1]))


def _step_losses(draft: FeatureDraft, ours: Tensor, theirs: Tensor, objective: FeatureObjective) -> dict[str, Tensor]:
    """Return the losses of a step from states ``[answers, hidden]`` of draft and target."""
    ce, kl = soft_cross_entropy(draft, ours, theirs, objective.chunk)
    if draft.config.format == "eagle3":
        return {"loss": ce, "kl": kl}
    features = F.smooth_l1_loss(ours.float(), theirs.float(), reduction="sum") / max(1, ours.numel())
    return {"loss": objective.ce_weight * ce + objective.feature_weight * features, "kl": kl, "features": features}


def soft_cross_entropy(draft: FeatureDraft, ours: Tensor, theirs: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy with the target's distribution, and the mean KL(target ‖ draft).

    The target's distribution is restricted to the tokens that the draft can guess. Positions where its likeliest token
    is none of them do not count (EAGLE-3). States ``[answers, hidden]`` are those before the heads.
    """
    shared, ids = draft.shared, draft.guessable

    def sums(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = shared.head(theirs.to(shared.dtype)).float()  # [n, vocab]
        guesses = draft.logits(ours).float()
        counted = torch.ones_like(logits[:, 0])
        if ids is not None:
            likeliest = logits.amax(-1)
            logits, guesses = logits[:, ids], guesses[:, ids]
            counted = (logits.amax(-1) == likeliest).float()
        wanted = torch.softmax(logits, -1)
        ce = -(wanted * torch.log_softmax(guesses, -1)).sum(-1)
        return (ce * counted).sum(), (torch.special.entr(wanted).sum(-1) * counted).sum(), counted.sum()

    total, entropy, count = sum_in_chunks(sums, (ours, theirs), chunk, 3)
    count = count.clamp(min=1.0)
    return total / count, (total - entropy) / count


def _zero_with_gradients(weights: Sequence[nn.Parameter]) -> Tensor:
    """Return zero with a gradient for every weight: several processes expect one, also where no picture is read."""
    return 0.0 * torch.stack([weight.sum() for weight in weights]).sum()
