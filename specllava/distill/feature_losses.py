"""Losses of a draft that reads the target's states, over several steps of its own: tensors in, scalars out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from specllava.distill.config import FeatureObjective
from specllava.distill.losses import IGNORE
from specllava.models.feature_draft import FeatureDraft

DECAY = 0.8  # weight of a step against the one before
USUAL_LENGTH = 512  # tokens at which noise has its full width


@dataclass(frozen=True, slots=True)
class TaughtTexts:
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
    """Keys and values of all steps, in the place of a KV cache; gradients go through them."""

    _held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add a step's keys and values ``[batch, heads, entries, size]`` and return those of all steps."""
        if layer in self._held:
            earlier = self._held[layer]
            keys, values = torch.cat([earlier[0], keys], dim=2), torch.cat([earlier[1], values], dim=2)
        self._held[layer] = keys, values
        return keys, values


def rollout_mask(entries: int, step: int, device: torch.device) -> Tensor | None:
    """Return which keys an entry sees in a step, ``[1, 1, entries, (step + 1) * entries]``; ``None`` for causal.

    Those of the first step up to its own, and its own of each later step: what a chain drafted from there would see.
    """
    if step == 0:
        return None
    causal = torch.ones(entries, entries, dtype=torch.bool, device=device).tril()
    own = torch.eye(entries, dtype=torch.bool, device=device)
    return torch.cat([causal, *[own] * step], dim=1)[None, None]


def feature_losses(draft: FeatureDraft, texts: TaughtTexts, objective: FeatureObjective) -> dict[str, Tensor]:
    """Compute the loss of :class:`FeatureObjective` over the answer tokens, and its parts in the first step.

    Step ``s`` at an entry that stands for token ``i`` reads token ``i + s``, true in every step, and predicts token
    ``i + s + 1`` and the target's state of token ``i + s``. What the layers read comes from
    :meth:`FeatureDraft.entries`, as in decoding.

    Returns:
        ``loss``; ``kl``, of the draft's distribution from the target's among the tokens that the draft can guess, in
        nats per token; ``features``, the smooth L1 distance, unless the draft's format has none.
    """
    length = texts.ids.shape[1]
    states = _noisy(texts.states, objective.noise)
    rows = [
        draft.entries(ids[1:], embeds[1:], known[:-1])
        for ids, embeds, known in zip(texts.ids, texts.embeds, states, strict=True)
    ]
    inputs = pad_sequence([row.inputs for row in rows], batch_first=True)  # [batch, entries, width]
    positions = _padded([row.positions for row in rows], 0, inputs.device)
    sources = _padded([row.sources for row in rows], -1, inputs.device)
    image = None if rows[0].image is None else torch.stack([row.image for row in rows if row.image is not None])[:, None]
    cache = RolloutCache()
    loss = inputs.new_zeros((), dtype=torch.float32) + _untouched(draft)
    shown: dict[str, Tensor] = {}
    for step in range(objective.rollout):
        mask = rollout_mask(inputs.shape[1], step, inputs.device)
        own = draft(inputs, draft.rotations(positions + step), mask, cache)
        stands_for = (sources + 1 + step).clamp(max=length - 1)  # the token that an entry reads in this step
        predicted = (stands_for + 1).clamp(max=length - 1)
        taught = (sources >= 0) & (sources + 2 + step < length) & (texts.labels.gather(1, predicted) != IGNORE)
        known = texts.last.gather(1, stands_for[..., None].expand(-1, -1, texts.last.shape[-1]))
        parts = _step_losses(draft, own[taught], known[taught], objective)
        shown = shown or {name: one.detach() for name, one in parts.items() if name != "loss"}
        loss = loss + DECAY**step * parts["loss"]
        if step + 1 < objective.rollout:
            inputs = draft.inputs(draft.embed(texts.ids.gather(1, predicted)), own, guessed=True, image=image)
    return {"loss": loss, **shown}


def _step_losses(draft: FeatureDraft, ours: Tensor, theirs: Tensor, objective: FeatureObjective) -> dict[str, Tensor]:
    """Return the losses of a step from states ``[answers, hidden]`` of draft and target."""
    ce, kl = soft_cross_entropy(draft, ours, theirs, objective.chunk)
    if draft.config.format == "eagle3":
        return {"loss": ce, "kl": kl}
    features = F.smooth_l1_loss(ours.float(), theirs.float(), reduction="sum") / max(1, ours.numel())
    return {"loss": objective.ce_weight * ce + objective.feature_weight * features, "kl": kl, "features": features}


def soft_cross_entropy(draft: FeatureDraft, ours: Tensor, theirs: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy with the target's distribution, and the mean KL(target ‖ draft).

    The target's distribution is restricted to the tokens that the draft can guess, and positions where its likeliest
    token is none of them do not count (EAGLE-3). The logits of ``chunk`` positions exist at a time, see
    :func:`~specllava.distill.losses.chunked_loss`.

    Args:
        ours, theirs: states ``[answers, hidden]`` of draft and target, before their heads.
    """
    ends, ids = draft.ends, draft.guessable

    def sums(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ends.head(theirs.to(ends.dtype)).float()  # [n, vocab]
        guesses = draft.logits(ours).float()
        counted = torch.ones_like(logits[:, 0])
        if ids is not None:
            counted = torch.isin(logits.argmax(-1), ids).float()
            logits, guesses = logits[:, ids], guesses[:, ids]
        wanted = torch.softmax(logits, -1)
        ce = -(wanted * torch.log_softmax(guesses, -1)).sum(-1)
        return (ce * counted).sum(), (torch.special.entr(wanted).sum(-1) * counted).sum(), counted.sum()

    total = entropy = count = ours.new_zeros((), dtype=torch.float32)
    for start in range(0, len(ours), chunk):
        here = slice(start, start + chunk)
        part: tuple[Tensor, Tensor, Tensor] = checkpoint(
            sums, ours[here], theirs[here], use_reentrant=False, preserve_rng_state=False
        )
        total, entropy, count = total + part[0], entropy + part[1], count + part[2]
    count = count.clamp(min=1.0)
    return total / count, (total - entropy) / count


def _noisy(states: Tensor, width: float) -> Tensor:
    """Add uniform noise to the target's states (EAGLE, section 4.2), less for longer texts."""
    if not width:
        return states
    return states + (torch.rand_like(states) - 0.5) * (width * USUAL_LENGTH / states.shape[1])


def _padded(rows: list[tuple[int, ...]], filler: int, device: torch.device) -> Tensor:
    """Return ``[batch, entries]``."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler).to(device)


def _untouched(draft: nn.Module) -> Tensor:
    """Return zero with a gradient for every weight: several processes expect one, also where no picture is read."""
    return 0.0 * torch.stack([weight.sum() for weight in draft.parameters() if weight.requires_grad]).sum()
