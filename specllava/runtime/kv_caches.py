"""KV caches of target and draft, each with the contents of its columns; they may outlive an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers import PreTrainedModel

from specllava.runtime.engine import Engine


class KVCaches:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    Their caches are allocated once, for the whole context and the largest tree behind it, however short the chat is:
    2 x layers x key/value heads x head size numbers a column. In half precision that is 0.5 MiB for LLaVA-1.5-7B (2.0
    GiB for its 4096 tokens), 0.8 MiB for 13B (3.2 GiB) and 0.04 MiB for a draft of 160M (0.15 GiB); the toy target
    takes 25 MB in float32. Let go of a chat that is no longer needed.
    """

    def __init__(self) -> None:
        self._engines: dict[PreTrainedModel, Engine] = {}
        self._in_use = False

    def engine(self, model: PreTrainedModel, capacity: int, state_layers: Sequence[int] = ()) -> Engine:
        """Return the engine of a model; one that has read nothing if there is none of at least ``capacity`` columns.

        Args:
            state_layers: hidden states that its passes return.
        """
        held = self._engines.get(model)
        if held is None or held.cache.capacity < capacity:
            held = self._engines[model] = Engine(model, capacity)
        held.state_layers = tuple(state_layers)
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
            raise
        finally:
            self._in_use = False
