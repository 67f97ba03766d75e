"""Engines that outlive an answer: a pool for each model, and the caches of one chat.

A captured pass names the memory of its engine, so engines are lent to one text after the other.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch
from transformers import PreTrainedModel

from specllava.engine.cpu import PackedWeights
from specllava.engine.cuda_graphs import WINDOW, CudaGraphs, window_of
from specllava.engine.decoders import Batch, LanguageModel, unpaddable
from specllava.engine.engine import Engine
from specllava.models.options import PassesName

MOST_FREE: Final = 3  # engines of a kind that wait for another text
EXACT_ROWS: Final = 32  # of every target pass where passes are exact
CONTEXT: Final = 7  # tokens before those that a self-check compares
COMPARED: Final = (1, 5, 1, 5)  # rows of its passes: a shape comes again, so that it is replayed
log = logging.getLogger(__name__)


class EnginePool:
    """Pool of the engines of one model.

    Args:
        graphs: for padded passes; they are tried once here, and not used where replays compute something else.
        exact: every pass of the target after the prompt has :data:`EXACT_ROWS` rows, so that all run the same kernels:
            in half precision another kernel rounds differently.
        packed: packed weights of the model, which is this package's own and does not learn meanwhile.

    Raises:
        ValueError: exact passes of a model that they cannot decode, in one line.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        graphs: CudaGraphs | None = None,
        exact: bool = False,
        packed: PackedWeights | None = None,
    ) -> None:
        self.model, self.exact, self._graphs, self._packed = model, exact, graphs, packed
        self._free: dict[tuple[int, ...], list[Engine]] = {}  # by the states that their passes return
        if graphs is not None:
            self._check(graphs)

    @property
    def mode(self) -> str:
        """How passes run: ``eager``, ``padded`` or ``graphs``, with the reason where a capture failed."""
        if self._graphs is None:
            return "eager"
        if self._graphs.failure is not None:
            return f"padded, a capture failed: {self._graphs.failure}"
        return "graphs" if self._graphs.capturing else "padded"

    def take(self, capacity: int, state_layers: tuple[int, ...] = (), wide: bool = False) -> Engine:
        """Return an engine that holds nothing: the smallest free one that fits, else a new one.

        If no free engine fits, texts have outgrown them, and they are dropped.

        Args:
            state_layers: hidden states that its passes return.
            wide: it verifies trees. One that has done so is preferred: a race's lanes would else swap engines, and each
                capture what both run.
        """
        free = self._free.setdefault(state_layers, [])
        fitting = min(
            (engine for engine in free if engine.cache.capacity >= capacity),
            key=lambda one: ((one.runner is not None and one.runner.widest > 1) != wide, one.cache.capacity),
            default=None,
        )
        if fitting is not None:
            free[:] = [engine for engine in free if engine is not fitting]  # another thread may have dropped it
            return fitting
        free.clear()
        capacity = capacity if self._graphs is None else window_of(capacity)
        rows = EXACT_ROWS if self.exact else 1
        return Engine.of(self.model, capacity, state_layers, self._graphs, rows, self._packed)

    def give_back(self, engine: Engine) -> None:
        """Take back an engine that nobody uses any more, and forget its text.

        Only engines with padded passes are kept, the latest :data:`MOST_FREE`.
        """
        if engine.runner is not None:
            engine.truncate(0)
            free = self._free.setdefault(engine.decoder.state_layers, [])
            free[:] = [*free[-(MOST_FREE - 1) :], engine]

    def _check(self, graphs: CudaGraphs) -> None:
        """Try on this device what padded, captured and exact passes rest on.

        Raises:
            ValueError: exact passes of a model that they cannot decode.
        """
        name, why = type(self.model).__name__, unpaddable(self.model)
        if why is None and graphs.enabled:
            differ = graphs.capturing and self._replays_differ(graphs)
            why = graphs.failure or ("replayed passes gave other bits than called ones" if differ else None)
            if why is not None and self.exact:
                log.warning("%s runs without CUDA graphs: %s", name, why)
                why, self._graphs = None, CudaGraphs(graphs.device, capture=False)
        if why is None and self.exact and self._rows_depend():
            why = "a row's bits depend on other rows here"
        if why is not None:
            if self.exact:
                raise ValueError(f"{name} cannot be decoded with exact passes: {why}")
            log.warning("%s runs without CUDA graphs: %s", name, why)
            self._graphs = None

    @torch.inference_mode()
    def _replays_differ(self, graphs: CudaGraphs) -> bool:
        """Return whether captured passes give other bits than the same passes called: logits, keys or values."""
        padded = CudaGraphs(graphs.device, capture=False)
        called, replayed = (Engine.of(self.model, WINDOW, graphs=one) for one in (padded, graphs))
        ids = self._random_ids(CONTEXT + sum(COMPARED))
        for rows in (CONTEXT, *COMPARED):
            tokens = [ids.pop() for _ in range(rows)]
            if not torch.equal(called.forward(Batch(tokens)).logits, replayed.forward(Batch(tokens)).logits):
                return True
        return not all(map(torch.equal, called.cache.slabs, replayed.cache.slabs))

    @torch.inference_mode()
    def _rows_depend(self) -> bool:
        """Return whether a row's bits depend on other rows, on its index or on the window of the pass.

        A chain of as many tokens as an exact pass has rows is read in one pass, then one by one. It lies across the end
        of a window. Equal logits, keys and values are what exact decoding rests on: by induction, both lanes of a race
        then read the same bits in the same slots.
        """
        engine = Engine.of(self.model, 2 * WINDOW, (), self._graphs, EXACT_ROWS, self._packed)
        assert isinstance(engine.decoder, LanguageModel)
        engine.decoder.begin()
        start = WINDOW - EXACT_ROWS // 2
        ids = self._random_ids(start + EXACT_ROWS)
        engine.forward(Batch(ids[:start], last=1))
        together = engine.forward(Batch(ids[start:])).logits.clone()
        written = engine.cache.slabs[0][..., start : start + EXACT_ROWS, :]
        before = written.clone()
        engine.truncate(start)
        alone = torch.stack([engine.forward(Batch([token])).logits[0].clone() for token in ids[start:]])
        return not (torch.equal(alone, together) and torch.equal(written, before))

    def _random_ids(self, count: int) -> list[int]:
        source = torch.Generator().manual_seed(0)
        vocabulary = self.model.config.get_text_config().vocab_size
        ids: list[int] = torch.randint(vocabulary, (count,), generator=source).tolist()
        return ids


@dataclass(frozen=True)
class EnginePools:
    """Pools of a pair's models, of one kind for every lane. Several drafts of a target share its pool.

    Args:
        graphs: of padded passes; ``None`` where passes have the shapes that they come in.
    """

    target: EnginePool
    draft: EnginePool | None
    graphs: CudaGraphs | None

    @classmethod
    def build(
        cls,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        device: torch.device,
        passes: PassesName,
        exact: bool,
        packed: bool = False,
    ) -> EnginePools:
        """Build pools for models on a device. On a GPU, cuDNN's attention is off from here on.

        Args:
            passes: ``eager``: shapes as they come; ``padded``: fixed shapes; ``graphs``: these captured and replayed,
                of each model whose replayed passes compute the same; ``auto``: graphs on a GPU, elsewhere eager, or
                padded for exact passes.
            packed: pack the target's weights, if this processor has products of packed weights.

        Raises:
            ValueError: graphs without a GPU, or exact passes that are not padded.
        """
        if device.type == "cuda":
            # It plans each new key length anew on the host, for tens of milliseconds: longer than most passes take.
            torch.backends.cuda.enable_cudnn_sdp(False)
        if passes == "auto":
            passes = "graphs" if device.type == "cuda" else "padded" if exact else "eager"
        if passes == "graphs" and device.type != "cuda":
            raise ValueError(f"CUDA graphs need a GPU and the pair is on {device}: use auto, eager or padded")
        if exact and passes == "eager":
            raise ValueError("exact passes are padded ones: leave passes at auto, padded or graphs")
        graphs = None if passes == "eager" else CudaGraphs(device, passes == "graphs")
        weights = PackedWeights.of(target) if packed else None
        return cls(EnginePool(target, graphs, exact, weights), None, graphs).with_draft(draft)

    def with_draft(self, draft: PreTrainedModel | None) -> EnginePools:
        """Return the same pool of the target with one for another draft, which takes its engines along if dropped."""
        return replace(self, draft=None if draft is None else EnginePool(draft, self.graphs))

    @property
    def capture_seconds(self) -> float:
        """Seconds that captures have taken so far."""
        return 0.0 if self.graphs is None else self.graphs.seconds


class KVCaches:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    A slot takes 2 x layers x key/value heads x head size numbers. In half precision 0.5 MiB for LLaVA-1.5-7B (2.0 GiB
    for its 4096 tokens) and 0.04 MiB for a draft of 160M (0.15 GiB). Drop a chat that is no longer needed: its engines
    return to their pools.
    """

    def __init__(self, pools: EnginePools) -> None:
        self.pools = pools
        self._engines: dict[tuple[EnginePool, tuple[int, ...]], Engine] = {}
        self._in_use = False
        weakref.finalize(self, _give_back, self._engines).atexit = False

    def target(self, capacity: int, state_layers: Sequence[int] = (), wide: bool = False) -> Engine:
        """Return the engine that verifies, with ``capacity`` slots at least.

        Args:
            state_layers: hidden states that its passes return.
            wide: it verifies trees.
        """
        engine = self._engine(self.pools.target, capacity, tuple(state_layers), wide)
        if self.pools.target.exact:
            engine.truncate(0)  # a slot has other bits where it was read with a prompt and not decoded
        return engine

    def draft(self, capacity: int) -> Engine:
        """Return the engine of the draft, with ``capacity`` slots at least."""
        assert self.pools.draft is not None, "there is no draft"
        return self._engine(self.pools.draft, capacity, (), False)

    def _engine(self, pool: EnginePool, capacity: int, state_layers: tuple[int, ...], wide: bool) -> Engine:
        """Return the engine of a kind; a larger one with the same text replaces one that is too small."""
        key = pool, state_layers
        engine = self._engines.get(key)
        if engine is None or engine.cache.capacity < capacity:
            larger = pool.take(capacity, state_layers, wide)
            if engine is not None:
                larger.copy_from(engine)
                pool.give_back(engine)
            engine = self._engines[key] = larger
        return engine

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Reserve the caches for one answer. Those of one that fails are forgotten: they may hold a tree.

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


def _give_back(engines: dict[tuple[EnginePool, tuple[int, ...]], Engine]) -> None:
    for (pool, _), engine in engines.items():
        pool.give_back(engine)
