"""KV caches of target and draft, which may outlive an answer, and the pool that lends their engines.

A padded engine's captured passes name its memory, so engines outlive texts: they are lent and given back.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.graphs import GraphMemory, GraphRunner
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine, unpaddable
from specllava.runtime.padded_passes import EXACT_ROWS, EagerRunner, PassRunner, window_of
from specllava.runtime.self_check import replays_differ, rows_depend

AnyEngine = Engine | FeatureEngine
Key = TypeVar("Key")
Held = TypeVar("Held", Engine, FeatureEngine)
MOST_FREE = 3  # engines of a model that wait for another text: as many as lanes of a race
log = logging.getLogger(__name__)


class EnginePool:
    """Pool of the engines of a pair's models, of one kind for every lane; each serves one text after the other.

    Args:
        runner: makes the runner of each padded engine; without it passes have the shapes that they come in.
        exact: every pass of a target has :data:`EXACT_ROWS` rows, in every lane, so that all run the same kernels: in
            half precision another kernel rounds differently. The first branch of a tree alone is verified.
        graphs: memory of the runners' graphs, if they capture any.

    Raises:
        ValueError: exact passes that are not padded.
    """

    def __init__(
        self,
        runner: Callable[[], PassRunner] | None = None,
        exact: bool = False,
        graphs: GraphMemory | None = None,
    ) -> None:
        if exact and runner is None:
            raise ValueError("exact passes are padded ones: leave passes at auto, padded or graphs")
        self.runner, self.graphs, self.exact = runner, graphs, exact
        self._free: dict[int, list[PaddedEngine | PaddedFeatureEngine]] = {}  # by the id of their model
        self._warned: set[str] = set()
        self._captured_well: MutableMapping[PreTrainedModel, bool] = WeakKeyDictionary()
        self._inexact: MutableMapping[PreTrainedModel, str | None] = WeakKeyDictionary()  # why not, in words

    def beside(self, target: PreTrainedModel) -> EnginePool:
        """Return a pool for another draft of the target: free engines of the target are shared, those of drafts not.

        A draft that is dropped takes its engines with it.
        """
        pool = EnginePool(self.runner, self.exact, self.graphs)
        pool._free[id(target)] = self._free.setdefault(id(target), [])
        pool._captured_well, pool._inexact = self._captured_well, self._inexact
        return pool

    def check(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        """Try on the device what its passes rest on, once for each model: before any clock runs.

        Raises:
            ValueError: exact passes over a target that they cannot decode, in one line.
        """
        self._check_rows(target)
        for model in (target, draft):
            if model is not None:
                self._runner(model)

    @property
    def capture_seconds(self) -> float:
        """Seconds that captures have taken so far."""
        return 0.0 if self.graphs is None else self.graphs.seconds

    def way(self, model: PreTrainedModel) -> str:
        """Return how a model's passes run here, in words."""
        runner = self._runner(model)
        if runner is None:
            return "eager"
        if self.graphs is None or runner is EagerRunner:
            return "padded"
        return "graphs" if self.graphs.failure is None else f"padded, a capture failed: {self.graphs.failure}"

    def engine(self, model: PreTrainedModel, capacity: int, rows: int = 0) -> Engine:
        """Return an engine that holds nothing.

        Args:
            rows: as :meth:`KVCaches.engine`.

        Raises:
            ValueError: exact passes over a target that they cannot decode.
        """
        if rows:
            self._check_rows(model)
        runner = self._runner(model)
        if runner is None:
            return Engine(model, capacity)
        free = self._take(model, capacity, rows)
        return free if isinstance(free, Engine) else PaddedEngine(model, window_of(capacity), runner())

    def feature_engine(self, draft: FeatureDraft, capacity: int) -> FeatureEngine:
        """Return an engine of a feature draft that holds nothing."""
        runner = self._runner(draft)
        if runner is None:
            return FeatureEngine(draft, capacity)
        free = self._take(draft, capacity, 0)
        return free if isinstance(free, FeatureEngine) else PaddedFeatureEngine(draft, window_of(capacity), runner())

    def give_back(self, engines: Iterable[AnyEngine]) -> None:
        """Take back engines that nobody uses any more; what they hold is forgotten.

        At most :data:`MOST_FREE` of a model are kept, the latest: memory of dropped dialogues is freed.
        """
        for engine in engines:
            if isinstance(engine, PaddedEngine | PaddedFeatureEngine):
                engine.keep(0, [])
                own = self._free.setdefault(id(engine.model), [])
                own[:] = [*own[-(MOST_FREE - 1) :], engine]

    def _take(self, model: PreTrainedModel, capacity: int, rows: int) -> AnyEngine | None:
        """Return the smallest free engine that fits, one that has served such a lane rather than another.

        Else a race's lanes would swap engines, and each would capture what both run. If no engine fits, texts have
        outgrown them, and they are dropped.
        """
        own = self._free.get(id(model), [])
        fits = (engine for engine in own if engine.cache.capacity >= capacity)
        fitting = min(fits, key=lambda one: ((one.passes.widest > 1) != (rows > 1), one.cache.capacity), default=None)
        own[:] = [] if fitting is None else [engine for engine in own if engine is not fitting]
        return fitting

    def _runner(self, model: PreTrainedModel) -> Callable[[], PassRunner] | None:
        """Return the maker of runners, or ``None`` for a model whose passes have the shapes that they come in."""
        if self.runner is None:
            return None
        if (why := unpaddable(model)) is not None:
            self._warn(f"{type(model).__name__} runs without CUDA graphs: {why}")
            return None
        if self.graphs is None or self._captures_well(model, self.runner):
            return self.runner
        return EagerRunner if self.exact else None

    def _captures_well(self, model: PreTrainedModel, runner: Callable[[], PassRunner]) -> bool:
        """Return whether a model's captured passes compute what they should; tried once, with a warning if not."""
        if model not in self._captured_well:
            differ = replays_differ(model, runner)
            assert self.graphs is not None
            why = self.graphs.failure or ("replayed passes gave other bits than called ones" if differ else None)
            self._captured_well[model] = why is None
            if why is not None:
                self._warn(f"{type(model).__name__} runs without CUDA graphs: {why}")
        return self._captured_well[model]

    def _check_rows(self, target: PreTrainedModel) -> None:
        if not self.exact:
            return
        if target not in self._inexact:
            why = unpaddable(target)
            if why is None and (runner := self._runner(target)) is not None and rows_depend(target, runner):
                why = "a row's bits depend on other rows here"
            self._inexact[target] = why
        if (why := self._inexact[target]) is not None:
            raise ValueError(f"{type(target).__name__} cannot be decoded with exact passes: {why}")

    def _warn(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            log.warning(line)


def build_engine_pool(device: torch.device, passes: PassesName, exact: bool) -> EnginePool:
    """Return the engine pool of a pair on a device. On a GPU, cuDNN's attention is off from here on.

    Args:
        passes: ``eager``: shapes as they come; ``padded``: fixed shapes; ``graphs``: these captured and replayed, of
            each model whose replayed passes compute the same; ``auto``: graphs on a GPU, elsewhere eager, or padded
            for exact passes.

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
    if passes == "graphs":
        graphs = GraphMemory(device)
        return EnginePool(lambda: GraphRunner(graphs), exact, graphs)
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
    def exact(self) -> bool:
        return self._pool.exact

    @property
    def capture_seconds(self) -> float:
        return self._pool.capture_seconds

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
            rows: tokens of the largest tree that it verifies, 1 for the target alone; 0 for an engine that drafts.
        """
        lend = partial(self._pool.engine, model, rows=rows)
        engine = self._hold(self._engines, (model, rows > 0), capacity, lend)
        if isinstance(engine, PaddedEngine):
            engine.passes.least_rows = EXACT_ROWS if self.exact and rows else 1
        if self.exact and rows:
            engine.keep(0, [])  # a column reads other bits where it was read with a prompt and not decoded
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
            self._feature_engines.clear()
            raise
        finally:
            self._in_use = False


def _give_back(pool: EnginePool, *held: Mapping[Any, AnyEngine]) -> None:
    for engines in held:
        pool.give_back(engines.values())
