"""A feature draft whose passes have fixed shapes, so that they can be captured once and replayed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specllava.models.drafts.feature_draft import DraftInputs, FeatureDraft
from specllava.runtime.cache import Content
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.padded_passes import WIDEST, PaddedPasses
from specllava.runtime.passes import LogitsReduction, PassInput, PassOutput
from specllava.runtime.runner import PassRunner
from specllava.runtime.slab import SlabCache


class PaddedFeatureEngine(FeatureEngine):
    """A :class:`FeatureEngine` over a slab. Prompts, and passes wider than the widest bucket, are read as they come.

    Args:
        model: one of which :func:`unpaddable` says nothing.
        runner: of its passes.
    """

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

    def _pass(
        self, batch: PassInput, held: Tensor, states: Tensor | None, reduction: LogitsReduction | None
    ) -> PassOutput:
        """Run a pass over tokens with ``states`` before them, which are copied to ``held``."""
        count, guessed = len(batch.tokens), held is self._guessed
        shape = self.passes.stage(batch, self.position_offset)
        held[:count] = 0.0 if states is None else states

        def compute() -> Tensor:
            embeds = self.model.embed(shape.ids[0])
            inputs = self.model.inputs(embeds, held[: shape.rows], guessed=guessed, image=self._picture)
            states = self.model(inputs[None], self._rotations(shape.positions), self.passes.mask(shape), self.cache)
            self._own[: shape.rows].copy_(states[0])
            return self.model.logits(states[0])

        logits, numbers = self.passes.run(guessed, shape, batch, compute, reduction)
        self.cache.contents += batch.tokens
        return PassOutput(logits, self._own[:count].clone(), numbers)  # the next level's pass writes there

    def _new_cache(self, capacity: int) -> SlabCache:
        return SlabCache(self.model.config, capacity, WIDEST, self.device, self.dtype)
