"""Seconds of passes by their number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.kv_caches import AnyEngine, EnginePool
from specllava.runtime.passes import PassInput
from specllava.runtime.timing import now

CONTEXT = 192  # tokens before the measured ones
WARM_UP = 2


def engine_of(model: PreTrainedModel, capacity: int, engines: EnginePool | None = None) -> AnyEngine:
    """Return the engine that a model runs in, of those given or one whose passes have the shapes that they come in."""
    engines = engines or EnginePool()
    if isinstance(model, FeatureDraft):
        return engines.feature_engine(model, capacity)
    return engines.engine(model, capacity)


@torch.inference_mode()
def pass_seconds(
    engines: Sequence[AnyEngine], ladder: Sequence[int], repeats: int, context: int = CONTEXT
) -> list[dict[int, list[float]]]:
    """Measure seconds of every pass of each engine, by its number of tokens, after ``context`` tokens.

    Engines and numbers of tokens take turns, so that whatever else the machine does falls on all of them.
    """
    for engine in engines:
        engine.forward(PassInput([0] * context, last=1))
    seconds: list[dict[int, list[float]]] = [{rows: [] for rows in ladder} for _ in engines]
    for repeat in range(WARM_UP + repeats):
        for rows in ladder:
            visible = np.ones((rows, context + rows), dtype=np.bool_)
            visible[:, context:] = np.tril(visible[:, context:])
            for engine, taken in zip(engines, seconds, strict=True):
                started = now(engine.device)
                engine.forward(PassInput([0] * rows, visible if rows > 1 else None)).logits.argmax(-1).tolist()
                if repeat >= WARM_UP:
                    taken[rows].append(now(engine.device) - started)
                engine.keep(context, [])
    return seconds
