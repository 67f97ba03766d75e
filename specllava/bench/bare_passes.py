"""Bare passes: a model's layers and head on tensors that lie ready, with nothing around them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaModel, PreTrainedModel

from specllava.models.checkpoints.language_model import input_device
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.attention import AttentionMasks
from specllava.runtime.cache import BranchCache

Mask = Tensor | dict[str, Tensor] | None
Ready = Callable[[], object]  # runs a pass whose tensors lie ready
Pass = Callable[[Tensor, Mask, Tensor], Ready]  # ids, mask and positions


class BarePasses:
    """Bare passes of one model; zeros as tokens, in a chain."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.device = input_device(model)
        self._model = model
        self._masks = AttentionMasks(model.config.get_text_config(), self.device, model.dtype)
        self._renew(0)

    def hold(self, columns: int, room: int) -> None:
        """Let the KV cache hold so many columns, whatever it held, with room for some more.

        What was laid ready is of no use behind a cache that had to become larger.
        """
        if columns + room > self._cache.capacity:
            self._renew(2 * (columns + room))
        if columns > self._cache.length:
            self.ready(columns - self._cache.length, self._cache.length)()
        self._cache.keep(columns, [])

    def ready(self, width: int, start: int) -> Ready:
        """Lay the tensors of a pass of ``width`` tokens ready; it has to be run behind ``start`` columns."""
        ids = torch.zeros((1, width), dtype=torch.long, device=self.device)
        visible = np.tri(width, start + width, start, dtype=np.bool_)
        positions = range(start, start + width)
        mask = self._masks.of(visible, positions, range(start)) if width > 1 else None
        return self._pass(ids, mask, torch.tensor([[*positions]], device=self.device))

    def _renew(self, capacity: int) -> None:
        self._cache = BranchCache(self._model.config.get_text_config().num_hidden_layers, capacity)
        kind = _feature_pass if isinstance(self._model, FeatureDraft) else _decoder_pass
        self._pass: Pass = kind(self._model, self._cache)


def _decoder_pass(model: PreTrainedModel, cache: BranchCache) -> Pass:
    """Return what makes a pass of a model's decoder and head; a Llama's layers are called one after the other."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()

    def made(ids: Tensor, mask: Mask, positions: Tensor) -> Ready:
        if not isinstance(decoder, LlamaModel):
            kept = {"past_key_values": cache, "use_cache": True}
            return lambda: head(
                decoder(input_ids=ids, attention_mask=mask, position_ids=positions, **kept).last_hidden_state
            )
        rotation = decoder.rotary_emb(decoder.embed_tokens(ids), position_ids=positions)

        def through_layers() -> object:
            states = decoder.embed_tokens(ids)
            for layer in decoder.layers:
                states = layer(
                    states, attention_mask=mask, position_embeddings=rotation, past_key_values=cache, use_cache=True
                )
            return head(decoder.norm(states))

        return through_layers

    return made


def _feature_pass(model: FeatureDraft, cache: BranchCache) -> Pass:
    """Return what makes a pass of a draft that reads states, which are zeros here."""

    def made(ids: Tensor, mask: Mask, positions: Tensor) -> Ready:
        cosines, sines = model.rotations(positions)

        def through_layers() -> object:
            embeds = model.embed(ids[0])
            inputs = model.inputs(embeds, torch.zeros_like(embeds), guessed=True, image=None)
            return model.logits(model(inputs[None], (cosines, sines), mask, cache)[0])

        return through_layers

    return made
