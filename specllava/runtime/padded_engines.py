"""Engines whose passes have fixed shapes, so that they can be captured once and replayed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import LlamaModel, PretrainedConfig, PreTrainedModel

from specllava.models.checkpoints.language_model import GROWING_ROPES
from specllava.models.drafts.feature_draft import DraftInputs, FeatureDraft
from specllava.runtime.cache import Content, StateRows
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.padded_passes import WIDEST, PaddedPasses, PassRunner
from specllava.runtime.pass_shapes import Shape
from specllava.runtime.passes import LogitsReduction, PassInput, PassOutput
from specllava.runtime.slab import SlabCache


class PaddedEngine(Engine):
    """An :class:`Engine` over a slab, of a model that is not :func:`unpaddable`.

    Prompts, and passes wider than the widest bucket, are read as they come.
    """

    cache: SlabCache

    def __init__(
        self, model: PreTrainedModel, capacity: int, runner: PassRunner, state_layers: Sequence[int] = ()
    ) -> None:
        self._rows_of: dict[tuple[int, ...], StateRows] = {}  # buffers stay where captured passes write
        super().__init__(model, capacity, state_layers)
        config = model.config.get_text_config()
        self.passes = PaddedPasses(self.cache, config.vocab_size, self.dtype, self.dtype, runner)

    def forward(self, batch: PassInput, reduction: LogitsReduction | None = None) -> PassOutput:
        if len(batch.tokens) > WIDEST:
            return super().forward(batch, reduction)
        start, count = self.cache.length, len(batch.tokens)
        shape = self.passes.stage(batch)
        logits, numbers = self.passes.run(self._kind, shape, batch, partial(self._compute, shape), reduction)
        self._record(batch.tokens, ())
        self._held.advance(start, count)
        return PassOutput(logits, self.kept_states(start), numbers)

    def prepare(self, rows: int, columns: int, reduction: LogitsReduction | None) -> None:
        self.passes.prepare(self._kind, rows, columns, self._compute, reduction)

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        self._held.move(base, len(offsets), self.cache.compact(base, offsets))

    @property
    def _kind(self) -> Hashable:
        return self.state_layers, self._rope_delta

    def _compute(self, shape: Shape) -> Tensor:
        last, hidden = self._through_layers(shape.ids, self.passes.mask(shape), shape.positions)
        if self.state_layers:
            self._held.storage.index_copy_(0, shape.write_slots.slots, self._join_states(hidden))
        return self._score(last[0])

    def _new_cache(self, config: PretrainedConfig, capacity: int) -> SlabCache:
        return SlabCache(config, capacity, WIDEST, self.device, self.dtype)

    def _new_rows(self) -> StateRows:
        rows = self._rows_of.get(self.state_layers)
        if rows is None:
            rows = self._rows_of[self.state_layers] = StateRows(self.cache.capacity, WIDEST)
            if self.state_layers:
                width = len(self.state_layers) * self.model.config.get_text_config().hidden_size
                rows.reserve(width, self.dtype, self.device)
        rows.length = 0
        return rows


def unpaddable(model: PreTrainedModel) -> str | None:
    """Return why passes over a model cannot have fixed shapes, in words; ``None`` if they can."""
    if isinstance(model, FeatureDraft):
        decoder, ends = model, (model.shared.embeddings, model.shared.head)
    else:
        decoder, ends = model.get_decoder(), (model.get_input_embeddings(), model.get_output_embeddings())
        if not isinstance(decoder, LlamaModel):
            return f"its decoder is a {type(decoder).__name__}"
    modules = [*decoder.modules(), *ends]
    if any(hasattr(module, "_hf_hook") for module in modules):
        return "accelerate moves its states between devices"
    if decoder.rotary_emb.rope_type in GROWING_ROPES:
        return f"its rotary embeddings are of type {decoder.rotary_emb.rope_type}"
    plain = {torch.Tensor, torch.nn.Parameter}
    if any(type(weight) not in plain or not weight.is_floating_point() for m in modules for weight in m.parameters()):
        return "its weights are quantised"
    return None


class PaddedFeatureEngine(FeatureEngine):
    """A :class:`FeatureEngine` over a slab."""

    cache: SlabCache

    def __init__(self, model: FeatureDraft, capacity: int, runner: PassRunner) -> None:
        super().__init__(model, capacity)
        config = model.config
        scored = self.dtype if config.own_head else model.shared.dtype
        self.passes = PaddedPasses(self.cache, config.vocab_size, scored, self.dtype, runner)
        width = len(config.state_layers) * int(config.target_hidden_size or config.hidden_size)
        self._target_states = torch.zeros((WIDEST, width), dtype=model.shared.dtype, device=self.device)
        self._guessed = torch.zeros((WIDEST, config.hidden_size), dtype=self.dtype, device=self.device)
        self._own = torch.zeros_like(self._guessed)
        self._picture = torch.zeros((config.hidden_size,), dtype=self.dtype, device=self.device)

    def prefill(self, entries: DraftInputs, contents: Sequence[Content]) -> Tensor:
        read = super().prefill(entries, contents)
        if self.image is None:
            self._picture.zero_()
        else:
            self._picture.copy_(self.image)
        return read

    def read(self, tokens: Sequence[int], states: Tensor, reduction: LogitsReduction | None = None) -> PassOutput:
        batch = PassInput(tokens, last=1)
        if len(tokens) > WIDEST:
            return super().read(tokens, states)
        return self._pass(batch, self._target_states, states, reduction)

    def forward(
        self, batch: PassInput, states: Tensor | None = None, reduction: LogitsReduction | None = None
    ) -> PassOutput:
        if len(batch.tokens) > WIDEST:
            return super().forward(batch, states)
        return self._pass(batch, self._guessed, states, reduction)

    def prepare(self, rows: int, columns: int, reduction: LogitsReduction | None) -> None:
        for held in (self._target_states, self._guessed):
            compute = partial(self._compute, held)
            self.passes.prepare(held is self._guessed, rows, columns, compute, reduction)

    def _pass(
        self, batch: PassInput, held: Tensor, states: Tensor | None, reduction: LogitsReduction | None
    ) -> PassOutput:
        """Run a pass over tokens with ``states`` before them, which are copied to ``held``."""
        count, guessed = len(batch.tokens), held is self._guessed
        shape = self.passes.stage(batch, self.position_offset)
        held[:count] = 0.0 if states is None else states
        logits, numbers = self.passes.run(guessed, shape, batch, partial(self._compute, held, shape), reduction)
        self.cache.contents += batch.tokens
        return PassOutput(logits, self._own[:count].clone(), numbers)  # the next level's pass writes there

    def _compute(self, held: Tensor, shape: Shape) -> Tensor:
        embeds, guessed = self.model.embed(shape.ids[0]), held is self._guessed
        inputs = self.model.inputs(embeds, held[: shape.rows], guessed=guessed, image=self._picture)
        states = self.model(inputs[None], self._rotations(shape.positions), self.passes.mask(shape), self.cache)
        self._own[: shape.rows].copy_(states[0])
        return self.model.logits(states[0])

    def _new_cache(self, capacity: int) -> SlabCache:
        return SlabCache(self.model.config, capacity, WIDEST, self.device, self.dtype)
