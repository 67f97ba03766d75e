"""Checks of padded passes on the device that runs them: replays compute the same, and a row depends on no other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine
from specllava.runtime.padded_passes import COLUMNS, EXACT_ROWS, EagerRunner, PassRunner
from specllava.runtime.passes import PassInput

CONTEXT = 7  # tokens before the compared ones
COMPARED = (1, 5, 1, 5)  # rows of compared passes: a kind comes again, so that it is replayed


def build_padded(model: PreTrainedModel, capacity: int, runner: PassRunner) -> PaddedEngine | PaddedFeatureEngine:
    """Return a padded engine of a model."""
    if isinstance(model, FeatureDraft):
        return PaddedFeatureEngine(model, capacity, runner)
    return PaddedEngine(model, capacity, runner)


@torch.inference_mode()
def replays_differ(model: PreTrainedModel, runner: Callable[[], PassRunner]) -> bool:
    """Return whether passes of a runner give other bits than the same passes called: logits, keys or values."""
    called, other = (build_padded(model, COLUMNS, one()) for one in (EagerRunner, runner))
    ids = _random_ids(model, CONTEXT + sum(COMPARED))
    for rows in (CONTEXT, *COMPARED):
        batch = PassInput([ids.pop() for _ in range(rows)])
        if not torch.equal(called.forward(batch).logits, other.forward(batch).logits):
            return True
    return not torch.equal(called.cache.slab, other.cache.slab)


@torch.inference_mode()
def rows_depend(model: PreTrainedModel, runner: Callable[[], PassRunner]) -> bool:
    """Return whether a row's bits depend on other rows, on its index or on the window of the pass.

    A chain of as many tokens as an exact pass has rows is read in one pass, then one by one. It lies across the end
    of a window. Equal logits, keys and values are what exact decoding rests on: by induction, both lanes of a race
    then read the same bits in the same columns.
    """
    engine = PaddedEngine(model, 2 * COLUMNS, runner())
    engine.passes.least_rows = EXACT_ROWS
    before = COLUMNS - EXACT_ROWS // 2
    ids = _random_ids(model, before + EXACT_ROWS)
    engine.forward(PassInput(ids[:before], last=1))
    together = engine.forward(PassInput(ids[before:])).logits.clone()
    columns = engine.cache.slab[..., before : before + EXACT_ROWS, :]
    written = columns.clone()
    engine.keep(before, [])
    alone = torch.stack([engine.forward(PassInput([token])).logits[0].clone() for token in ids[before:]])
    return not (torch.equal(alone, together) and torch.equal(columns, written))


def _random_ids(model: PreTrainedModel, count: int) -> list[int]:
    source = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(model.config.get_text_config().vocab_size, (count,), generator=source).tolist()
    return ids
