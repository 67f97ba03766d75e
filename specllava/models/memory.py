"""What outlives an answer: the caches of target and draft, each with what its columns show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from specllava.config import DecodingConfig
from specllava.models.engine import Engine


def target_columns(length: int, config: DecodingConfig) -> int:
    """Columns of the target's cache for ``length`` tokens of prompt and answer, and the largest tree behind them."""
    return length + config.nodes + 1


def draft_columns(length: int, config: DecodingConfig) -> int:
    """The same of a draft's cache, which holds every level of a beam, or a whole shape, until the target has chosen."""
    return target_columns(length, config) + max(config.depth * config.width, config.nodes)


class Memory:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    Their caches are allocated once, for the whole context and the largest tree behind it, however short the chat is:
    2 x layers x key/value heads x head size numbers a column. In half precision that is 0.5 MiB for LLaVA-1.5-7B (2.0
    GiB for its 4096 tokens), 0.8 MiB for 13B (3.2 GiB) and 0.04 MiB for a draft of 160M (0.15 GiB); the toy target
    takes 25 MB in float32. Let go of a chat that is no longer needed.
    """

    def __init__(self) -> None:
        self._engines: dict[PreTrainedModel, Engine] = {}
        self._lent = False

    def engine(self, model: PreTrainedModel, capacity: int) -> Engine:
        """The engine of a model; one that has read nothing if there is none of at least ``capacity`` columns."""
        held = self._engines.get(model)
        if held is None or held.cache.capacity < capacity:
            self._engines[model] = Engine(model, capacity)
        return self._engines[model]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """For one answer at a time. The caches of one that fails are forgotten: they may hold a tree, which is no text.

        Raises:
            ValueError: another answer is not finished.
        """
        if self._lent:
            raise ValueError("this memory serves another answer: finish or close that one first")
        self._lent = True
        try:
            yield
        except GeneratorExit:  # stopped between two steps, where the caches are whole
            raise
        except BaseException:
            self._engines.clear()
            raise
        finally:
            self._lent = False
