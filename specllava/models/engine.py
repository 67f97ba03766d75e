"""One model and its cache: tokens in, logits out. Target and draft both run through it.

The cache's columns are labelled with what they show, so a prompt is read only from where it differs from what was read
or said before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import LlamaModel, PreTrainedModel

from specllava.cache import BranchCache, Label
from specllava.models.family import Features
from specllava.models.place import home
from specllava.models.vision import merge_features, slots_of

GROWING_ROPES = ("dynamic", "longrope")  # their angles depend on how long the text is


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt was read.

    Args:
        logits: ``[vocab]``, after its last token.
        reused: columns that the cache held already, so that no pass was needed for them.
    """

    logits: Tensor
    reused: int


class Engine:
    """A language model over a branch cache, batch 1.

    Args:
        model: a vision-language model, whose vision tower is not used here, or a plain language model.
        capacity: cache columns that fit.
    """

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        self.model = model
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.device = home(model)
        self.dtype = model.dtype
        self.cache = BranchCache(model.config.get_text_config().num_hidden_layers, capacity)
        number = np.float64 if self.dtype is torch.float64 else np.float32
        self._always, self._never = number(0.0), number(torch.finfo(self.dtype).min)  # added to the scores of a column
        self._positions = torch.arange(capacity, device=self.device)
        self._rotations = _rotations(self.decoder, capacity, self.dtype)

    def prefill(self, input_ids: Tensor, features: Features | None, pictures: Sequence[str] = ()) -> Reading:
        """Read a prompt ``[1, length]``, in place of what the cache holds; what both begin with is not read again.

        Args:
            features: of all the prompt's pictures; ``None`` if it has none.
            pictures: a key for each picture, which equal ones share; one without a key is always read anew.

        Raises:
            ValueError: as many image slots as no features fit.
        """
        ids, marker = input_ids[0].tolist(), getattr(self.model.config, "image_token_id", None)
        counts = slots_of(self.model, features)
        keys = chain.from_iterable(repeat(key, count) for key, count in zip(pictures, counts, strict=False))
        labels: list[Label] = [next(keys, None) if token == marker else token for token in ids]
        kept = self.cache.shared(labels[:-1])  # the last token is always read: its logits are wanted
        ends = list(accumulate(counts, initial=0))  # slots up to each picture
        held = ids[:kept].count(marker)
        seen = bisect_right(ends, held) - 1
        kept -= held - ends[seen]  # a picture is read whole
        self.cache.keep(kept, [])
        self.cache.check_room(len(ids) - kept)
        rest = None if features is None or seen >= len(counts) else features[seen:]
        embeds = merge_features(self.model, input_ids[:, kept:], rest)
        output = self.decoder(inputs_embeds=embeds, past_key_values=self.cache, use_cache=True)
        self.cache.labels += labels[kept:]
        return Reading(self.head(output.last_hidden_state[0, -1]), kept)

    def forward(
        self,
        tokens: Sequence[int],
        visible: npt.NDArray[np.bool_] | None = None,
        positions: Sequence[int] | None = None,
        last: int = 0,
    ) -> Tensor:
        """Append tokens to the cache and score them.

        Args:
            tokens: one column each, behind what the cache holds.
            visible: ``[tokens, cached + tokens]``; which columns each token attends to. Default: all before it.
            positions: position of each token in the text. Default: one after the other behind the cache.
            last: score only that many tokens from the end; 0 for all.

        Returns:
            Logits ``[tokens or last, vocab]``.
        """
        self.cache.check_room(len(tokens))
        start = self.cache.length
        if visible is None and len(tokens) > 1:
            visible = np.tri(len(tokens), start + len(tokens), start, dtype=np.bool_)
        mask = None
        if visible is not None:
            added = np.where(visible, self._always, self._never)
            mask = torch.from_numpy(added).to(self.device, self.dtype)[None, None]  # [1, 1, tokens, columns]
        places = slice(start, start + len(tokens)) if positions is None else torch.tensor(positions, device=self.device)
        ids = torch.tensor([list(tokens)], device=self.device)
        if isinstance(self.decoder, LlamaModel):
            states = self._through_layers(ids, mask, places)
        else:
            output = self.decoder(
                input_ids=ids,
                attention_mask=mask,
                position_ids=self._positions[places][None],
                past_key_values=self.cache,
                use_cache=True,
            )
            states = output.last_hidden_state
        self.cache.labels += tokens
        logits: Tensor = self.head(states[0, -last:])
        return logits

    def _through_layers(self, ids: Tensor, mask: Tensor | None, places: slice | Tensor) -> Tensor:
        """What the decoder's own forward does once the mask is known, layer after layer: ``[1, tokens, hidden]``.

        For a draft of one layer its bookkeeping around that, and working out again how each position is rotated, are
        a good part of a pass on a CPU.
        """
        states = self.decoder.embed_tokens(ids)
        if self._rotations is None:
            rotation = self.decoder.rotary_emb(states, position_ids=self._positions[places][None])
        else:
            rotation = tuple(self._rotations[:, :, places])
        for layer in self.decoder.layers:
            states = layer(
                states,
                attention_mask=mask,
                position_embeddings=rotation,
                past_key_values=self.cache,
                use_cache=True,
            )
        final: Tensor = self.decoder.norm(states)
        return final


@torch.inference_mode()
def _rotations(decoder: PreTrainedModel, capacity: int, dtype: torch.dtype) -> Tensor | None:
    """Cosines and sines of all positions, ``[2, 1, capacity, head_dim]``; ``None`` where they depend on more."""
    if not isinstance(decoder, LlamaModel) or decoder.rotary_emb.rope_type in GROWING_ROPES:
        return None
    place = decoder.embed_tokens.weight.device
    if place.type == "meta":  # accelerate brings the weights when they are used
        return None
    positions = torch.arange(capacity, device=place)[None]
    return torch.stack(decoder.rotary_emb(torch.empty(0, dtype=dtype, device=place), position_ids=positions))
