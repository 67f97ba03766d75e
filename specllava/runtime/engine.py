"""One model and its KV cache: tokens in, logits and hidden states out. Target and draft both run through it.

The cache records the content of each column, so a prompt is read only from where it differs from what was read or
decoded before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaModel, PretrainedConfig, PreTrainedModel

from specllava.models.checkpoints.language_model import GROWING_ROPES, input_device
from specllava.models.checkpoints.tokens import slot_ids
from specllava.models.families.family import find_family
from specllava.models.families.interface import Features
from specllava.runtime.cache import BranchCache, Content, StateRows
from specllava.runtime.llama_layer import Rotation, run_layer, run_norm
from specllava.runtime.passes import (
    AttentionMasks,
    LogitsReduction,
    PassInput,
    PassOutput,
    PrefillOutput,
    seen_in_prefill,
)
from specllava.runtime.vision import merge_features, num_image_tokens, prompt_contents


class Engine:
    """A language model over a branch cache, batch 1.

    Args:
        model: a vision-language model, whose vision tower is not used here, or a plain language model.
        capacity: cache columns that fit.
        state_layers: hidden states that passes return, numbered as transformers does (0: the embeddings, -1: the
            last, normed); none by default, and then none are gathered.
    """

    def __init__(self, model: PreTrainedModel, capacity: int, state_layers: Sequence[int] = ()) -> None:
        self.model = model
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.device = input_device(model)
        self.dtype = model.dtype
        config = model.config.get_text_config()
        self.cache = self._new_cache(config, capacity)
        self._masks = AttentionMasks(config, self.device, self.dtype)
        self._family = find_family(model.config)
        self._rope_delta = 0  # position id minus position in the text, which pictures of some families change
        self._positions = torch.arange(capacity, device=self.device)
        self._rotations = _rotations(self.decoder, capacity, self.dtype)
        self.state_layers: tuple[int, ...] = ()
        self._held = self._new_rows()
        self.set_state_layers(state_layers)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and held states."""
        return self.cache.nbytes + self._held.nbytes

    def set_state_layers(self, state_layers: Sequence[int]) -> None:
        """Set the layers whose hidden states passes return; held states of other layers are dropped."""
        if self.state_layers != tuple(state_layers):
            self.state_layers = tuple(state_layers)
            self._held = self._new_rows()

    def copy_from(self, other: Engine) -> None:
        """Take over the columns of an engine of smaller capacity, and the states that it holds of them."""
        self.cache.copy_from(other.cache)
        self.set_state_layers(other.state_layers)
        self._held.copy_from(other._held)
        self._rope_delta = other._rope_delta

    def prefill(self, input_ids: Tensor, features: Features | None, image_keys: Sequence[str] = ()) -> PrefillOutput:
        """Read a prompt ``[1, length]``, which replaces the cache's columns; a common beginning is not read again.

        Args:
            features: of all the prompt's pictures; ``None`` if it has none.
            image_keys: a key for each picture, which equal ones share; one without a key is always read anew.

        Raises:
            ValueError: another number of image slots than the features fill.
        """
        ids, markers = input_ids[0].tolist(), slot_ids(self.model.config)
        counts = num_image_tokens(self.model, features)
        contents = prompt_contents(self.model, ids, features, image_keys)
        # The last token is always read, for its logits; a picture that is shared in part is read whole.
        shared = self.cache.common_prefix(contents[:-1])
        if self.state_layers:
            shared = min(shared, self._held.length)  # what lacks its states is read again
        positions = None if self._family is None else self._family.prefill_positions(self.model, input_ids, features)
        self._rope_delta = 0 if positions is None else int(positions[..., -1].max()) + 1 - len(ids)
        reused, seen = _before_cut_image([i for i, token in enumerate(ids) if token in markers], counts, shared)
        self.keep(reused, [])
        self.cache.check_room(len(ids) - reused)
        rest = None if features is None or seen >= len(counts) else features[seen:]
        embeds = merge_features(self.model, input_ids[:, reused:], rest)
        arguments: dict[str, Any] = {}
        if self._family is not None:
            arguments = self._family.prefill_arguments(self.model, input_ids[:, reused:], rest)
            if positions is not None:
                arguments["position_ids"] = positions[..., reused:]
            if self._family.bidirectional and rest is not None:
                slots = np.isin(ids, markers)
                visible, read = seen_in_prefill(slots, reused), range(reused, len(ids))
                arguments["attention_mask"] = self._masks.of(visible, read, self.cache.positions)
        output = self.decoder(
            inputs_embeds=embeds,
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=bool(self.state_layers),
            **arguments,
        )
        self._record(contents[reused:], range(reused, len(ids)))
        self._states(output.hidden_states, reused)
        return PrefillOutput(self._score(output.last_hidden_state[0, -1]), reused, self._held.rows)

    def forward(self, batch: PassInput, reduction: LogitsReduction | None = None) -> PassOutput:
        """Append tokens to the cache and score them.

        Args:
            reduction: what the host has to know of the logits; not computed here, where the logits are at hand.

        Raises:
            ValueError: they do not fit the cache.
        """
        tokens, count = batch.tokens, len(batch.tokens)
        self.cache.check_room(count)
        start = self.cache.length
        visible = batch.visible
        if visible is None and count > 1:
            visible = np.tri(count, start + count, start, dtype=np.bool_)
        positions = range(start, start + count) if batch.positions is None else batch.positions
        mask = None if visible is None else self._masks.of(visible, positions, self.cache.positions)
        at = slice(start, start + count) if batch.positions is None else torch.tensor(positions, device=self.device)
        ids = torch.tensor([list(tokens)], device=self.device)
        if isinstance(self.decoder, LlamaModel):
            last, hidden = self._through_layers(ids, mask, at)
        else:
            output = self.decoder(
                input_ids=ids,
                attention_mask=mask,
                position_ids=self._position_ids(at),
                past_key_values=self.cache,
                use_cache=True,
                output_hidden_states=bool(self.state_layers),
            )
            last, hidden = output.last_hidden_state, output.hidden_states
        self._record(tokens, positions)
        return PassOutput(self._score(last[0, -batch.last :]), self._states(hidden, start))

    def prepare(self, rows: int, columns: int, reduction: LogitsReduction | None) -> None:
        """Get ready for passes over up to ``rows`` tokens in the next ``columns``, where passes have fixed shapes."""
        return

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        """Keep the first ``base`` columns and those at ``base + offset``; see :meth:`BranchCache.keep`."""
        self.cache.keep(base, offsets)
        self._held.keep(base, offsets)

    def kept_states(self, base: int) -> Tensor | None:
        """Return the hidden states of the columns from ``base`` on, ``[columns, layers * hidden]``, if any are held.

        They are valid as long as the columns are kept.
        """
        rows = self._held.rows
        return None if rows is None or not self.state_layers else rows[base:]

    def _new_cache(self, config: PretrainedConfig, capacity: int) -> BranchCache:
        return BranchCache(config.num_hidden_layers, capacity)

    def _new_rows(self) -> StateRows:
        return StateRows(self.cache.capacity)

    def _score(self, states: Tensor) -> Tensor:
        """Score next tokens on the device of the inputs, where a draft's logits are; the head may lie on another."""
        logits: Tensor = self.head(states)
        return logits.to(self.device)

    def _position_ids(self, at: slice | Tensor) -> Tensor:
        """Return position ids ``[1, tokens]``, or ``[3, 1, tokens]`` for a family with three rows of positions."""
        positions = self._positions[at][None] + self._rope_delta
        rows = 1 if self._family is None else self._family.position_rows
        return positions if rows == 1 else positions.expand(rows, 1, -1)

    def _record(self, contents: Sequence[Content], positions: Sequence[int]) -> None:
        self.cache.contents += contents
        if self._masks.window is not None:  # nothing else asks
            self.cache.positions += positions

    def _states(self, hidden: Sequence[Tensor] | None, start: int) -> Tensor | None:
        """Join the hidden states of the requested layers, ``[tokens, layers * hidden]``, and hold them by column."""
        if not self.state_layers or hidden is None:
            return None
        joined = self._join_states(hidden)
        self._held.write(start, joined)
        return joined

    def _join_states(self, hidden: Sequence[Tensor]) -> Tensor:
        return torch.cat([hidden[layer][0].to(self.device) for layer in self.state_layers], dim=-1)

    def _through_layers(
        self, ids: Tensor, mask: Tensor | dict[str, Tensor] | None, at: slice | Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Run a Llama's embedding, layers and norm in order: ``[1, tokens, hidden]``, and the states of each layer.

        On a CPU, the decoder's own bookkeeping and rotations are a good part of a pass of a draft of one layer.
        """
        states = self.decoder.embed_tokens(ids)
        if self._rotations is None or self._rope_delta:
            rotation = Rotation.of(*self.decoder.rotary_emb(states, position_ids=self._position_ids(at)))
        else:
            rotation = Rotation(*self._rotations[:, :, at])
        gathered = []
        for layer in self.decoder.layers:
            if self.state_layers:
                gathered.append(states)
            states = run_layer(layer, states, mask, rotation, self.cache)
        final = run_norm(self.decoder.norm, states)
        return final, [*gathered, final]


def _before_cut_image(slots: Sequence[int], counts: Sequence[int], shared: int) -> tuple[int, int]:
    """Count the columns of ``shared`` ones that can be reused without cutting a picture, and the pictures in them.

    Args:
        counts: how many of them belong to each picture; a picture's slots need not lie side by side.
    """
    begin = 0
    for number, count in enumerate(counts):
        own = slots[begin : begin + count]
        if own and own[-1] >= shared:
            return min(shared, own[0]), number
        begin += count
    return shared, len(counts)


@torch.inference_mode()
def _rotations(decoder: PreTrainedModel, capacity: int, dtype: torch.dtype) -> Tensor | None:
    """Compute a :class:`Rotation` by position, ``[3, 1, capacity, head_dim]``; ``None`` where it depends on more."""
    if not isinstance(decoder, LlamaModel) or decoder.rotary_emb.rope_type in GROWING_ROPES:
        return None
    device = decoder.embed_tokens.weight.device
    if device.type == "meta":  # accelerate brings the weights when they are used
        return None
    positions = torch.arange(capacity, device=device)[None]
    like = torch.empty(0, dtype=dtype, device=device)
    return torch.stack(Rotation.of(*decoder.rotary_emb(like, position_ids=positions)))
