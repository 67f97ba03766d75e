"""The engines of a pair's models, of one kind for every lane; they serve one text after the other.

A padded engine's captured passes name its memory, so engines outlive texts: they are lent and given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine, unpaddable
from specllava.runtime.padded_passes import WIDEST, EagerRunner, GraphRunner, PassRunner, bucket_of, window_of

AnyEngine = Engine | FeatureEngine
MOST_FREE = 3  # engines of a model that wait for another text: as many as lanes of a race
log = logging.getLogger(__name__)


class Engines:
    """Maker and lender of engines.

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
        self._free: list[PaddedEngine | PaddedFeatureEngine] = []
        self._warned: set[str] = set()

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
        """Return the engine of a feature draft, likewise."""
        runner = self._padding(draft)
        if runner is None:
            return FeatureEngine(draft, capacity)
        free = self._take(draft, capacity)
        return free if isinstance(free, FeatureEngine) else PaddedFeatureEngine(draft, window_of(capacity), runner())

    def verify_with(self, engine: Engine, capacity: int, rows: int) -> None:
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
                own = [one for one in self._free if one.model is engine.model]
                gone = own[: max(0, len(own) + 1 - MOST_FREE)]
                self._free = [one for one in self._free if all(one is not old for old in gone)] + [engine]

    def _take(self, model: PreTrainedModel, capacity: int) -> AnyEngine | None:
        """Return the smallest free engine that fits. If none does, texts have outgrown them, and they are let go."""
        own = sorted((e for e in self._free if e.model is model), key=lambda engine: engine.cache.capacity)
        fitting = next((engine for engine in own if engine.cache.capacity >= capacity), None)
        gone = own if fitting is None else [fitting]
        self._free = [engine for engine in self._free if all(engine is not one for one in gone)]
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


def engines_for(device: torch.device, passes: PassesName, exact: bool) -> Engines:
    """Return the engines of a pair on a device.

    Args:
        passes: ``eager``: shapes as they come; ``padded``: fixed shapes; ``graphs``: these captured and replayed;
            ``auto``: eager, padded for exact passes. Graphs are not, until ``make gpu`` was seen to pass on a GPU.

    Raises:
        ValueError: graphs without a GPU, or exact passes that are not padded.
    """
    if passes == "auto":
        passes = "padded" if exact else "eager"
    if passes == "graphs" and device.type != "cuda":
        raise ValueError(f"CUDA graphs need a GPU and the pair is on {device}: use auto, eager or padded")
    if passes == "graphs":
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        return Engines(lambda: GraphRunner(pool, stream), exact)
    return Engines(None if passes == "eager" else EagerRunner, exact)
