"""The clock, and what passes cost on this machine, measured for the cost-aware rule."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from transformers import LlavaForConditionalGeneration

from specllava.costs import Costs
from specllava.models.engine import Engine

CONTEXT = 192  # tokens before the measured ones
VERIFY_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DRAFT_ROWS = (1, 2, 4, 8)
REPEATS, WARM_UP = 5, 2


def now(device: torch.device) -> float:
    """Wall-clock seconds after all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure_costs(target: LlavaForConditionalGeneration, draft: LlavaForConditionalGeneration) -> Costs:
    """Median seconds of passes of both models by their number of tokens. Takes about 100 passes."""
    return Costs.through(pass_seconds(target, VERIFY_ROWS), pass_seconds(draft, DRAFT_ROWS))


@torch.inference_mode()
def pass_seconds(model: LlavaForConditionalGeneration, ladder: tuple[int, ...]) -> dict[int, float]:
    """Median seconds of a pass by its number of tokens, in a context of :data:`CONTEXT` tokens."""
    engine = Engine(model, CONTEXT + max(ladder))
    engine.forward([0] * CONTEXT, last=1)
    found: dict[int, float] = {}
    for rows in ladder:
        visible = np.ones((rows, CONTEXT + rows), dtype=np.bool_)
        visible[:, CONTEXT:] = np.tril(visible[:, CONTEXT:])
        taken = []
        for _ in range(WARM_UP + REPEATS):
            started = now(engine.device)
            engine.forward([0] * rows, visible if rows > 1 else None).argmax(-1).tolist()
            taken.append(now(engine.device) - started)
            engine.cache.keep(CONTEXT, [])
        found[rows] = statistics.median(taken[WARM_UP:])
    return found
