"""KV caches of target and draft, each with the contents of its columns; they may outlive an answer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.engine import Engine
from specllava.runtime.engines import AnyEngine, Engines
from specllava.runtime.feature_engine import FeatureEngine


class KVCaches:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    A column takes 2 x layers x key/value heads x head size numbers. In half precision 0.5 MiB for LLaVA-1.5-7B (2.0 GiB
    for its 4096 tokens) and 0.04 MiB for a draft of 160M (0.15 GiB). Drop a chat that is no longer needed.

    Args:
        engines: who lends them; given back once these caches are no longer held.
    """

    def __init__(self, engines: Engines | None = None) -> None:
        self._lender = engines or Engines()
        self._engines: dict[tuple[PreTrainedModel, bool], Engine] = {}  # by model and whether it verifies
        self._feature_engines: dict[FeatureDraft, FeatureEngine] = {}
        self._in_use = False
        weakref.finalize(self, _give_back, self._lender, self._engines, self._feature_engines).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values of all engines."""
        own = sum(engine.nbytes for engine in self._feature_engines.values())
        return own + sum(engine.nbytes for engine in self._engines.values())

    def feature_engine(self, draft: FeatureDraft, capacity: int) -> FeatureEngine:
        """Return the engine of a feature draft, likewise larger if needed."""
        held = self._feature_engines.get(draft)
        if held is None or held.cache.capacity < capacity:
            larger = self._lender.feature_engine(draft, capacity)
            if held is not None:
                larger.cache.copy_from(held.cache)
                self._lender.give_back([held])
            held = self._feature_engines[draft] = larger
        return held

    def engine(
        self, model: PreTrainedModel, capacity: int, state_layers: Sequence[int] = (), rows: int = 0
    ) -> Engine:
        """Return the engine of a model; a larger one with the same columns if it has fewer than ``capacity``.

        A target that drafts too has two: one verifies, the other drafts.

        Args:
            state_layers: hidden states that its passes return.
            rows: tokens of the largest tree that it verifies; 0 for an engine that drafts.
        """
        key = model, rows > 0
        held = self._engines.get(key)
        if held is None or held.cache.capacity < capacity:
            larger = self._lender.engine(model, capacity)
            if held is not None:
                larger.copy_from(held)
                self._lender.give_back([held])
            held = self._engines[key] = larger
        self._lender.verify_with(held, capacity, rows)
        held.set_state_layers(state_layers)
        return held

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Reserve the caches for one answer. Those of one that fails are forgotten: they may hold a tree, not a text.

        Raises:
            ValueError: another answer is not finished.
        """
        if self._in_use:
            raise ValueError("these KV caches serve another answer: finish or close that one first")
        self._in_use = True
        try:
            yield
        except GeneratorExit:  # stopped between two steps, where the caches are whole
            raise
        except BaseException:
            self._engines.clear()
            self._feature_engines.clear()
            raise
        finally:
            self._in_use = False


def _give_back(lender: Engines, *held: Mapping[Any, AnyEngine]) -> None:
    for engines in held:
        lender.give_back(engines.values())
