"""Engine: a decoder over its KV cache, batch 1. Every lane's target and draft run through it.

``forward`` appends tokens (a chain, a level or a tree) and scores them. ``prefill`` reads a prompt from the first token
that differs from the text in the cache. ``commit`` keeps the accepted branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specllava.engine.cpu import PackedWeights
from specllava.engine.cuda_graphs import WIDEST, CudaGraphs, GraphRunner
from specllava.engine.decoders import Batch, Decoder, EagleHead, LanguageModel, Mask, PassInputs, Reduction, causal_mask
from specllava.engine.kv_cache import KVCache
from specllava.models.drafts.eagle import DraftInputs, FeatureDraft
from specllava.models.family import Features
from specllava.models.language_model import FULL, SLIDING, layer_types
from specllava.models.tokens import slot_ids
from specllava.prompt import Label, merge_features, num_image_tokens, prompt_labels


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a pass, valid until the next one.

    Args:
        logits: ``[tokens or last, vocab]``.
        states: hidden states of the tokens, ``[tokens, width]``; ``None`` if the decoder returns none.
        reduced: of each row of the logits, by a :class:`Reduction`, if one was given.
    """

    logits: Tensor
    states: Tensor | None
    reduced: list[list[float]] | None


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """Output of reading a prompt.

    Args:
        logits: ``[vocab]``, after its last token.
        reused: slots that the KV cache held already, so that no pass was needed for them.
        states: hidden states of all slots, the reused ones included, ``[length, width]``; ``None`` without any.
    """

    logits: Tensor
    reused: int
    states: Tensor | None


class Engine:
    """A decoder over a KV cache.

    Args:
        capacity: slots for prompt, answer and the largest tree.
        graphs: with them passes are padded to few shapes, and captured where ``graphs`` captures.
        min_rows: rows that a padded pass has at least.
    """

    def __init__(
        self, decoder: Decoder, capacity: int, graphs: CudaGraphs | None = None, min_rows: int = 1
    ) -> None:
        self.decoder = decoder
        config, scratch = decoder.config, 0 if graphs is None else WIDEST
        spread = getattr(decoder.model, "hf_device_map", None) or {}
        self.cache = KVCache(config.num_hidden_layers, capacity, scratch, len(set(spread.values())) <= 1)
        self.runner = None if graphs is None else GraphRunner(graphs, decoder, self.cache, min_rows)
        self.position_offset = 0  # position in the text minus slot: pictures may take fewer positions, or fewer slots
        self._masks = AttentionMasks(config, decoder.device, decoder.dtype)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        capacity: int,
        state_layers: tuple[int, ...] = (),
        graphs: CudaGraphs | None = None,
        min_rows: int = 1,
        packed: PackedWeights | None = None,
    ) -> Engine:
        """Build the engine of a model: a language model, which returns ``state_layers``, or an EAGLE head."""
        if isinstance(model, FeatureDraft):
            return cls(EagleHead(model, capacity), capacity, graphs)
        return cls(LanguageModel(model, capacity, state_layers, packed), capacity, graphs, min_rows)

    def forward(self, batch: Batch, reduction: Reduction | None = None) -> Output:
        """Append tokens to the cache and score them.

        Args:
            reduction: what the host needs of the logits, computed with the pass.

        Raises:
            ValueError: they do not fit the cache.
        """
        count, start = len(batch.tokens), self.cache.length
        self.cache.reserve(count)
        positions = range(start, start + count) if batch.positions is None else batch.positions
        if self.runner is not None and count <= WIDEST:
            at = [position + self.position_offset for position in positions]
            logits, reduced = self.runner.run(batch, start, at, reduction)
        else:
            hidden, states = self.decoder(self._inputs(batch, positions), self.cache)
            if states is not None:
                self.cache.write_states(states)
            logits = self.decoder.logits(hidden if batch.last is None else hidden[-batch.last :])
            reduced = None if reduction is None else reduction(logits).tolist()
        self.cache.record(batch.tokens, positions)
        return Output(logits, self.cache.states_from(start), reduced)

    def warm_up(self, rows: int, slots: int, reduction: Reduction | None) -> None:
        """Capture the passes over up to ``rows`` tokens in the next ``slots``, if passes are captured."""
        if self.runner is not None:
            self.runner.warm_up(rows, slots, reduction)

    def copy_from(self, other: Engine) -> None:
        """Copy the text of an engine of smaller capacity."""
        self.cache.copy_from(other.cache)
        self.position_offset = other.position_offset
        if isinstance(self.decoder, EagleHead) and isinstance(other.decoder, EagleHead):
            self.decoder.image.copy_(other.decoder.image)

    def truncate(self, length: int) -> None:
        """Drop the text from slot ``length`` on."""
        self.cache.truncate(length)

    def commit(self, base: int, offsets: Sequence[int]) -> Tensor | None:
        """Keep the first ``base`` slots and those at ``base + offset``; see :meth:`KVCache.commit`.

        Returns the hidden states of the latter, ``[offsets, width]``, valid until the next pass; ``None`` without any.
        """
        self.cache.commit(base, offsets)
        return self.cache.states_from(base)

    def prefill(self, input_ids: Tensor, features: Features | None, image_keys: Sequence[str] = ()) -> PrefillOutput:
        """Read a prompt ``[1, length]``, which replaces the cached text; a common beginning is not read again.

        Args:
            features: of all the prompt's pictures; ``None`` if it has none.
            image_keys: a key for each picture, which equal ones share; one without a key is always read anew.

        Raises:
            ValueError: image slots do not match the features, or hooks that passes would skip.
        """
        decoder = self.decoder
        assert isinstance(decoder, LanguageModel), "an EAGLE head reads entries"
        decoder.begin()
        model, family = decoder.model, decoder.family
        ids, markers = input_ids[0].tolist(), slot_ids(model.config)
        counts, labels = num_image_tokens(model, features), prompt_labels(model, ids, features, image_keys)
        # The last token is always read, for its logits; a picture that is shared in part is read whole.
        shared = self.cache.common_prefix(labels[:-1])
        positions = None if family is None else family.prefill_positions(model, input_ids, features)
        self.position_offset = 0 if positions is None else int(positions[..., -1].max()) + 1 - len(ids)
        reused, seen = _before_cut_image([i for i, token in enumerate(ids) if token in markers], counts, shared)
        self.cache.truncate(reused)
        self.cache.reserve(len(ids) - reused)
        rest = None if features is None or seen >= len(counts) else features[seen:]
        arguments: dict[str, Any] = {}
        if family is not None:
            arguments = family.prefill_arguments(model, input_ids[:, reused:], rest)
            if positions is not None:
                arguments["position_ids"] = positions[..., reused:]
            if family.bidirectional and rest is not None:
                visible = visible_in_prefill(np.isin(ids, markers), reused)
                arguments["attention_mask"] = self._masks.of(visible, range(reused, len(ids)), self.cache.positions)
        output = decoder.decoder(
            inputs_embeds=merge_features(model, input_ids[:, reused:], rest),
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=bool(decoder.state_layers),
            **arguments,
        )
        states = decoder.join_states(output.hidden_states)
        if states is not None:
            self.cache.write_states(states)
        self.cache.record(labels[reused:], range(reused, len(ids)))
        return PrefillOutput(decoder.logits(output.last_hidden_state[0, -1]), reused, self.cache.states_from(0))

    def prefill_entries(self, entries: DraftInputs, labels: Sequence[Label]) -> None:
        """Read a prompt's entries with an EAGLE head; they replace the cached text, as in :meth:`prefill`.

        Args:
            labels: of each entry; equal beginnings have equal states.
        """
        decoder = self.decoder
        assert isinstance(decoder, EagleHead), "a language model reads tokens"
        assert entries.bias is None, "a draft in training mode weighs all that its gate could choose"
        reused = self.cache.common_prefix(labels)
        self.cache.truncate(reused)
        following = 1 + max(entries.positions, default=-1) if entries.rows is None else int(entries.rows[0, -1])
        self.position_offset = following - len(labels)
        decoder.image.copy_(torch.zeros_like(decoder.image) if entries.image is None else entries.image)
        if reused == len(labels):
            return
        self.cache.reserve(len(labels) - reused)
        mask = self._mask(None, len(labels) - reused, range(reused, len(labels)))
        rotations = decoder.prompt_rotations(entries, reused)
        self.cache.write_states(decoder.model(entries.inputs[None, reused:], rotations, mask, self.cache)[0])
        self.cache.record(labels[reused:], range(reused, len(labels)))

    def _inputs(self, batch: Batch, positions: Sequence[int]) -> PassInputs:
        """Upload a batch as it comes, without padding."""
        device = self.decoder.device
        first = self.cache.length + self.position_offset
        where: slice | Tensor = slice(first, first + len(positions))
        if batch.positions is not None:
            where = torch.tensor(positions, device=device) + self.position_offset
        ids = torch.tensor(list(batch.tokens), device=device)
        mask = self._mask(batch.visible, len(batch.tokens), positions)
        return PassInputs(ids, where, mask, batch.states, batch.drafted)

    def _mask(self, visible: npt.NDArray[np.bool_] | None, count: int, positions: Sequence[int]) -> Mask:
        """Build the mask of a pass over ``count`` tokens; a single token that sees all needs none."""
        if visible is None and count > 1:
            visible = causal_mask(count, self.cache.length)
        return None if visible is None else self._masks.of(visible, positions, self.cache.positions)


class AttentionMasks:
    """Builder of the masks that a decoder adds to its attention scores.

    Args:
        config: of the decoder; its ``layer_types`` and ``sliding_window`` decide which masks there are.
    """

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        types = set(layer_types(config))
        self.window: int | None = int(config.sliding_window) if SLIDING in types else None
        self._mixed = len(types) > 1
        self._device, self._dtype = device, dtype
        number = np.float64 if dtype is torch.float64 else np.float32
        self._zero, self._never = number(0.0), number(torch.finfo(dtype).min)

    def of(
        self, visible: npt.NDArray[np.bool_], positions: Sequence[int], cached: Sequence[int]
    ) -> Tensor | dict[str, Tensor]:
        """Build masks ``[1, 1, tokens, slots]``, 0 where a slot is visible; a dictionary where layer types differ.

        Args:
            visible: ``[tokens, slots]``.
            positions: of each token in the text; read only where there is a window.
            cached: position of each cached slot; read only where there is a window.
        """
        full = self._additive(visible)
        if self.window is None:
            return full
        slots = np.array([*cached, *positions])  # [slots]
        near = np.array(positions)[:, None] - slots[None] < self.window
        sliding = self._additive(visible & near)
        return {FULL: full, SLIDING: sliding} if self._mixed else sliding

    def _additive(self, visible: npt.NDArray[np.bool_]) -> Tensor:
        added = np.where(visible, self._zero, self._never)
        return torch.from_numpy(added).to(self._device, self._dtype)[None, None]


def visible_in_prefill(slots: npt.NDArray[np.bool_], start: int) -> npt.NDArray[np.bool_]:
    """Return what the tokens from ``start`` on see: all up to themselves, and an image slot its whole run of slots.

    Args:
        slots: which tokens are image slots, ``[length]``.

    Returns:
        Truth values ``[length - start, length]``.
    """
    begins = slots & ~np.concatenate([[False], slots[:-1]])
    runs = np.where(slots, begins.cumsum(), 0)  # number of the run that a slot is in, from 1
    visible = causal_mask(len(slots) - start, start)
    visible |= slots[start:, None] & (runs[start:, None] == runs)
    return visible


def _before_cut_image(slots: Sequence[int], counts: Sequence[int], shared: int) -> tuple[int, int]:
    """Count the slots of ``shared`` ones that can be reused without cutting a picture, and the pictures in them.

    Args:
        counts: how many of ``slots`` belong to each picture; a picture's slots need not be side by side.
    """
    begin = 0
    for number, count in enumerate(counts):
        own = slots[begin : begin + count]
        if own and own[-1] >= shared:
            return min(shared, own[0]), number
        begin += count
    return shared, len(counts)
