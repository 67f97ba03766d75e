"""Bare passes: a model's layers and head on tensors that are ready, without any bookkeeping; the floor of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaModel, PreTrainedModel

from specllava.bench.timed_run import PassShape, TimedRun
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.passes import AttentionMasks
from specllava.runtime.timing import now

Ready = Callable[[], object]  # runs a pass whose tensors are ready


class BarePasses:
    """Bare passes of one model over a KV cache of its own; tokens are zeros, in a chain."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._engine = self._new_engine(1)
        self.device = self._engine.device

    def hold(self, columns: int, room: int) -> None:
        """Let the KV cache hold so many columns, with room for more; passes that are ready end if it has to grow."""
        if columns + room > self._engine.cache.capacity:
            self._engine = self._new_engine(2 * (columns + room))
        held = self._engine.cache.length
        if columns > held:
            self.ready(columns - held, held)()
        self._engine.keep(columns, [])

    def ready(self, width: int, start: int) -> Ready:
        """Prepare a pass of ``width`` tokens, to be run when the cache holds ``start`` columns."""
        return self._engine.ready(width, start)

    def _new_engine(self, capacity: int) -> _BareEngine | _BareFeatureEngine:
        if isinstance(self._model, FeatureDraft):
            return _BareFeatureEngine(self._model, capacity)
        return _BareEngine(self._model, capacity)


class _BareEngine(Engine):
    def ready(self, width: int, start: int) -> Ready:
        ids, mask = _chain(self._masks, width, start, self.device)
        at = slice(start, start + width)
        if isinstance(self.decoder, LlamaModel):
            return lambda: self._score(self._through_layers(ids, mask, at)[0])
        given = {"position_ids": self._position_ids(at), "past_key_values": self.cache, "use_cache": True}
        return lambda: self._score(self.decoder(input_ids=ids, attention_mask=mask, **given).last_hidden_state)


class _BareFeatureEngine(FeatureEngine):
    """Bare passes of a draft that reads states, which are zeros here."""

    def ready(self, width: int, start: int) -> Ready:
        ids, mask = _chain(self._masks, width, start, self.device)
        rotations = self._rotations(range(start, start + width))

        def run_pass() -> object:
            embeds = self.model.embed(ids[0])
            inputs = self.model.inputs(embeds, torch.zeros_like(embeds), guessed=True, image=None)
            return self.model.logits(self.model(inputs[None], rotations, mask, self.cache)[0])

        return run_pass


def _chain(
    masks: AttentionMasks, width: int, start: int, device: torch.device
) -> tuple[Tensor, Tensor | dict[str, Tensor] | None]:
    """Return ids ``[1, width]`` and mask of a chain after ``start`` columns."""
    visible = np.tri(width, start + width, start, dtype=np.bool_)
    mask = masks.of(visible, range(start, start + width), range(start)) if width > 1 else None
    return torch.zeros((1, width), dtype=torch.long, device=device), mask


class BareSteps:
    """Seconds of the passes of whole steps, bare.

    The passes of a step alternate between the models as the run's did, so the processor's caches are as warm or cold.
    """

    def __init__(self, pair: Pair) -> None:
        self._device = pair.device
        self._passes = {"target": BarePasses(pair.target)}
        if pair.draft is not None:
            self._passes["draft"] = BarePasses(pair.draft)

    @torch.inference_mode()
    def seconds(self, run: TimedRun) -> float:
        """Run the passes of every step of a run in their order, and return their seconds."""
        return math.fsum(map(self._step, run.passes()))

    def _step(self, shapes: list[PassShape]) -> float:
        for name, bare in self._passes.items():
            if own := [shape for shape in shapes if shape.model == name]:
                bare.hold(own[0].context, sum(shape.width for shape in own))
        ready = [self._passes[shape.model].ready(shape.width, shape.context) for shape in shapes]
        started = now(self._device)
        for run_pass in ready:
            run_pass()
        return now(self._device) - started
