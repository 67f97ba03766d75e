"""KV caches of target and draft, which may outlive an answer, and the pool that lends their engines.

A padded engine's captured passes name its memory, so engines outlive texts: they are lent and given back.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine, unpaddable
from specllava.runtime.padded_passes import WIDEST, EagerRunner, GraphRunner, PassRunner, bucket_of, window_of

AnyEngine = Engine | FeatureEngine
Key = TypeVar("Key")
Held = TypeVar("Held", Engine, FeatureEngine)
MOST_FREE = 3  # engines of a model that wait for another text: as many as lanes of a race
log = logging.getLogger(__name__)


class EnginePool:
    """Pool of the engines of a pair's models, of one kind for every lane; each serves one text after the other.

    Args:
        runner: makes the runner of each padded engine; without it passes have the shapes that they come in.
        exact: every pass of a target has the shape of the largest tree's, in every lane, so that all run the same
            kernels: in half precision another kernel rounds differently. Attention may still sum in another order:
            ancestors of a node in a later branch are in other columns than in the text alone.

    Raises:
        ValueError: exact passes that are not padded.
    """

    def __init__(self, runner: Callable[[], PassRunner] | None = None, exact: bool = False) -> None:
        if exact and runner is None:
            raise ValueError("exact passes are padded ones: leave passes at auto, padded or graphs")
        self.runner, self._exact = runner, exact
        self._free: dict[int, list[PaddedEngine | PaddedFeatureEngine]] = {}  # by the id of their model
        self._warned: set[str] = set()

    def beside(self, target: PreTrainedModel) -> EnginePool:
        """Return a pool for another draft of the target: free engines of the target are shared, those of drafts not.

        A draft that is dropped takes its engines with it.
        """
        pool = EnginePool(self.runner, self._exact)
        pool._free[id(target)] = self._free.setdefault(id(target), [])
        return pool

    def check(self, target: PreTrainedModel) -> None:
        """Refuse a target that cannot be decoded by exact passes, if they are exact.

        Raises:
            ValueError: it cannot.
        """
        self._padding(target)

    def engine(self, model: PreTrainedModel, capacity: int) -> Engine:
        """Return an engine that holds nothing.

        Raises:
            ValueError: exact passes over a model that cannot be padded.
        """
        runner = self._padding(model)
        if runner is None:
            return Engine(model, capacity)
        free = self._take(model, capacity)
        return free if isinstance(free, Engine) else PaddedEngine(model, window_of(capacity), runner())

    def feature_engine(self, draft: FeatureDraft, capacity: int) -> FeatureEngine:
        """Return an engine of a feature draft that holds nothing."""
        runner = self._padding(draft)
        if runner is None:
            return FeatureEngine(draft, capacity)
        free = self._take(draft, capacity)
        return free if isinstance(free, FeatureEngine) else PaddedFeatureEngine(draft, window_of(capacity), runner())

    def prepare(self, engine: Engine, capacity: int, rows: int) -> None:
        """Prepare an engine for a text of ``capacity`` columns and trees of up to ``rows`` tokens, if it verifies any.

        If passes are exact, all of them have that shape.

        Raises:
            ValueError: exact passes wider than the widest bucket.
        """
        if self._exact and rows > WIDEST:
            raise ValueError(f"exact passes verify up to {WIDEST - 1} guesses, not {rows - 1}: ask for fewer nodes")
        if isinstance(engine, PaddedEngine):
            least = (bucket_of(rows), capacity) if self._exact and rows else (1, 1)
            engine.passes.least_rows, engine.passes.least_columns = least

    def give_back(self, engines: Iterable[AnyEngine]) -> None:
        """Take back engines that nobody uses any more; what they hold is forgotten.

        At most :data:`MOST_FREE` of a model are kept, the latest: memory of dropped dialogues is freed.
        """
        for engine in engines:
            if isinstance(engine, PaddedEngine | PaddedFeatureEngine):
                engine.keep(0, [])
                own = self._free.setdefault(id(engine.model), [])
                own[:] = [*own[-(MOST_FREE - 1) :], engine]

    def _take(self, model: PreTrainedModel, capacity: int) -> AnyEngine | None:
        """Return the smallest free engine that fits. If none does, texts have outgrown them, and they are dropped."""
        own = self._free.get(id(model), [])
        fits = (engine for engine in own if engine.cache.capacity >= capacity)
        fitting = min(fits, key=lambda engine: engine.cache.capacity, default=None)
        own[:] = [] if fitting is None else [engine for engine in own if engine is not fitting]
        return fitting

    def _padding(self, model: PreTrainedModel) -> Callable[[], PassRunner] | None:
        """Return the maker of runners, or ``None`` with a warning for a model whose passes cannot be padded."""
        why = None if self.runner is None else unpaddable(model)
        if why is None:
            return self.runner
        if self._exact:
            raise ValueError(f"{type(model).__name__} cannot be decoded with exact passes: {why}")
        line = f"{type(model).__name__} runs without CUDA graphs: {why}"
        if line not in self._warned:
            self._warned.add(line)
            log.warning(line)
        return None


def build_engine_pool(device: torch.device, passes: PassesName, exact: bool) -> EnginePool:
    """Return the engine pool of a pair on a device. On a GPU, cuDNN's attention is off from here on.

    Args:
        passes: ``eager``: shapes as they come; ``padded``: fixed shapes; ``graphs``: these captured and replayed;
            ``auto``: eager, padded for exact passes. Graphs are not, until ``make gpu`` was seen to pass on a GPU.

    Raises:
        ValueError: graphs without a GPU, or exact passes that are not padded.
    """
    if device.type == "cuda":
        # It plans each new key length anew on the host, for tens of milliseconds: longer than most passes take.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if passes == "auto":
        passes = "padded" if exact else "eager"
    if passes == "graphs" and device.type != "cuda":
        raise ValueError(f"CUDA graphs need a GPU and the pair is on {device}: use auto, eager or padded")
    if passes == "graphs":
        memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        return EnginePool(lambda: GraphRunner(memory, stream), exact)
    return EnginePool(None if passes == "eager" else EagerRunner, exact)


class KVCaches:
    """Engines that serve one answer after the other, so that a chat is read once and not once per turn.

    A column takes 2 x layers x key/value heads x head size numbers. In half precision 0.5 MiB for LLaVA-1.5-7B (2.0 GiB
    for its 4096 tokens) and 0.04 MiB for a draft of 160M (0.15 GiB). Drop a chat that is no longer needed.

    Args:
        pool: lends the engines; they are given back once these caches are no longer held.
    """

    def __init__(self, pool: EnginePool | None = None) -> None:
        self._pool = pool or EnginePool()
        self._engines: dict[tuple[PreTrainedModel, bool], Engine] = {}  # by model and whether it verifies
        self._feature_engines: dict[FeatureDraft, FeatureEngine] = {}
        self._in_use = False
        weakref.finalize(self, _give_back, self._pool, self._engines, self._feature_engines).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values of all engines."""
        own = sum(engine.nbytes for engine in self._feature_engines.values())
        return own + sum(engine.nbytes for engine in self._engines.values())

    def feature_engine(self, draft: FeatureDraft, capacity: int) -> FeatureEngine:
        """Return the engine of a feature draft, with ``capacity`` columns at least."""
        return self._hold(self._feature_engines, draft, capacity, partial(self._pool.feature_engine, draft))

    def engine(
        self, model: PreTrainedModel, capacity: int, state_layers: Sequence[int] = (), rows: int = 0
    ) -> Engine:
        """Return the engine of a model, with ``capacity`` columns at least.

        A target that drafts too has two: one verifies, the other drafts.

        Args:
            state_layers: hidden states that its passes return.
            rows: tokens of the largest tree that it verifies; 0 for an engine that drafts.
        """
        engine = self._hold(self._engines, (model, rows > 0), capacity, partial(self._pool.engine, model))
        self._pool.prepare(engine, capacity, rows)
        engine.set_state_layers(state_layers)
        return engine

    def _hold(
        self, held: dict[Key, Held], key: Key, capacity: int, lend: Callable[[int], Held]
    ) -> Held:
        """Return the engine that is held under a key; a larger one with the same columns replaces one too small."""
        engine = held.get(key)
        if engine is None or engine.cache.capacity < capacity:
            larger = lend(capacity)
            if engine is not None:
                larger.copy_from(engine)
                self._pool.give_back([engine])
            engine = held[key] = larger
        return engine

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


def _give_back(pool: EnginePool, *held: Mapping[Any, AnyEngine]) -> None:
    for engines in held:
        pool.give_back(engines.values())
