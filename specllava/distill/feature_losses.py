"""Losses of a draft that reads the target's states, over several steps of its own: tensors in, scalars out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from specllava.distill.config import FeatureObjective
from specllava.distill.losses import IGNORE, sum_in_chunks
from specllava.models.drafts.eagle import FeatureDraft

DECAY = 0.8  # weight of a step against the one before
NOWHERE = -(2**20)  # token number of an entry that reads no token
USUAL_LENGTH = 512  # tokens at which noise has its full width


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


@dataclass(slots=True)
class RolloutCache:
    """Keys and values of all steps, used as a KV cache; gradients flow through them."""

    _held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add a step's keys and values ``[batch, heads, entries, size]`` and return those of all steps."""
        if layer in self._held:
            earlier = self._held[layer]
            keys, values = torch.cat([earlier[0], keys], dim=2), torch.cat([earlier[1], values], dim=2)
        self._held[layer] = keys, values
        return keys, values


def rollout_mask(roots: Tensor, entries: int, step: int) -> Tensor:
    """Return the attention mask of chains in a later step, ``[batch, 1, chains, entries + step * chains]``.

    A chain sees the entries up to the one that it begins with, and its own of each later step.

    Args:
        roots: numbers of the entries that chains begin with, ``[batch, chains]``.
    """
    true = torch.arange(entries, device=roots.device) <= roots[..., None]  # [batch, chains, entries]
    own = torch.eye(roots.shape[1], dtype=torch.bool, device=roots.device).expand(len(roots), -1, -1)
    return torch.cat([true, *[own] * step], dim=-1)[:, None]


def feature_losses(draft: FeatureDraft, texts: TargetTexts, objective: FeatureObjective) -> dict[str, Tensor]:
    """Compute the loss of :class:`FeatureObjective` over the answer tokens.

    What the layers read in the first step comes from :meth:`FeatureDraft.entries`, as in decoding. An entry that reads
    token ``i`` predicts the target's state of that token, and token ``i + 1``. A later step reads the next true token
    with the state that the step before made; only steps that predict an answer token count.

    Returns:
        ``loss``, and two values of the first step. ``kl`` is KL(target ‖ draft) among the tokens that the draft can
        guess, in nats per token; ``features`` is the smooth L1 distance, not for ``eagle3``.
    """
    states = _noisy(texts.states, objective.noise)
    rows = [
        draft.entries(ids[1:], embeds[1:], known[:-1], question=asked)
        for ids, embeds, known, asked in zip(texts.ids, texts.embeds, states, _questions(texts), strict=True)
    ]
    inputs = pad_sequence([row.inputs for row in rows], batch_first=True)  # [batch, entries, width]
    entries, image = inputs.shape[1], _stack_images([row.image for row in rows])
    positions = _pad([torch.tensor(row.positions) for row in rows], 0).to(inputs.device)
    read = _pad([torch.tensor(row.sources) for row in rows], -1).to(inputs.device) + 1  # token of each entry
    read = read.masked_fill(read < 1, NOWHERE)
    bias = _weights([row.bias for row in rows], inputs)
    roots, cache, loss = read, RolloutCache(), _zero_with_gradients(draft)
    shown: dict[str, Tensor] = {}
    for step in range(objective.rollout):
        mask = None if step == 0 else rollout_mask(roots, entries, step)
        own = draft(inputs, draft.rotations(positions), _weigh(mask, bias), cache)
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
        inputs = draft.inputs(draft.embed(_at(texts.ids, read)), own, guessed=True, image=image)
    return {"loss": loss, **shown}


def _questions(texts: TargetTexts) -> Tensor:
    """Return the target's states of the last token before each text's first answer, ``[batch, layers * hidden]``."""
    first = (texts.labels != IGNORE).int().argmax(dim=1)
    return _at(texts.states, first[:, None] - 1)[:, 0]


def _weights(rows: list[Tensor | None], inputs: Tensor) -> Tensor | None:
    """Stack the biases of attention scores ``[batch, entries]``, zeros for a text without."""
    if all(row is None for row in rows):
        return None
    none = inputs.new_zeros(inputs.shape[1])
    return pad_sequence([none if row is None else row for row in rows], batch_first=True)


def _weigh(seen: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return an attention mask with the weights ``bias [batch, entries]`` of a compressor's gate in it.

    Args:
        seen: truth values ``[batch, 1, chains, keys]``, the entries' keys first; causal without.
    """
    if bias is None:
        return seen
    entries = bias.shape[1]
    if seen is None:
        seen = torch.ones(entries, entries, dtype=torch.bool, device=bias.device).tril()[None, None]
    return torch.where(seen, F.pad(bias, (0, seen.shape[-1] - entries))[:, None, None], -torch.inf)


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
    is none of them do not count (EAGLE-3). The logits of ``chunk`` positions exist at a time, see
    :func:`~specllava.distill.losses.sum_in_chunks`.

    Args:
        ours, theirs: states ``[answers, hidden]`` of draft and target, before their heads.
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


def _noisy(states: Tensor, width: float) -> Tensor:
    """Add uniform noise to the target's states (EAGLE, section 4.2), less for longer texts."""
    if not width:
        return states
    return states + (torch.rand_like(states) - 0.5) * (width * USUAL_LENGTH / states.shape[1])


def _stack_images(images: list[Tensor | None]) -> Tensor | None:
    """Stack the vectors that pictures add to later entries, ``[batch, 1, hidden]``, zeros without a picture."""
    some = next((one for one in images if one is not None), None)
    if some is None:
        return None
    return torch.stack([torch.zeros_like(some) if one is None else one for one in images])[:, None]


def _pad(rows: list[Tensor], filler: int) -> Tensor:
    """Return ``[batch, longest]``."""
    return pad_sequence(rows, batch_first=True, padding_value=filler)


def _zero_with_gradients(draft: nn.Module) -> Tensor:
    """Return zero with a gradient for every weight: several processes expect one, also where no picture is read."""
    return 0.0 * torch.stack([weight.sum() for weight in draft.parameters() if weight.requires_grad]).sum()
