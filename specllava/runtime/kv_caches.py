"""KV caches of target and draft, each with the contents of its columns; they may outlive an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers import PreTrainedModel

from specllava.models.feature_draft import FeatureDraft
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine


class KVCaches:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    A column takes 2 x layers x key/value heads x head size numbers. In half precision that is 0.5 MiB for LLaVA-1.5-7B
    (2.0 GiB for its 4096 tokens), 0.8 MiB for 13B (3.2 GiB) and 0.04 MiB for a draft of 160M (0.15 GiB); the toy target
    takes 25 MB in float32 for its 1024. Let go of a chat that is no longer needed.
    """

    def __init__(self) -> None:
        self._engines: dict[PreTrainedModel, Engine] = {}
        self._feature_engines: dict[FeatureDraft, FeatureEngine] = {}
        self._in_use = False

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values of all engines."""
        own = sum(engine.nbytes for engine in self._feature_engines.values())
        return own + sum(engine.nbytes for engine in self._engines.values())

    def feature_engine(self, draft: FeatureDraft, capacity: int) -> FeatureEngine:
        """Return the engine of a feature draft, likewise."""
        held = self._feature_engines.get(draft)
        if held is None or held.cache.capacity < capacity:
            larger = FeatureEngine(draft, capacity)
            if held is not None:
                larger.cache.copy_from(held.cache)
            held = self._feature_engines[draft] = larger
        return held

    def engine(self, model: PreTrainedModel, capacity: int, state_layers: Sequence[int] = ()) -> Engine:
        """Return the engine of a model; a larger one with the same columns if it has fewer than ``capacity``.

        Args:
            state_layers: hidden states that its passes return.
        """
        held = self._engines.get(model)
        if held is None or held.cache.capacity < capacity:
            larger = Engine(model, capacity)
            if held is not None:
                larger.copy_from(held)
            held = self._engines[model] = larger
        held.ask(state_layers)
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
