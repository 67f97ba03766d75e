"""Bare passes: a model's layers and head on tensors that lie ready, with nothing around them but the clock."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaModel, PreTrainedModel

from specllava.bench.measured import RawPass
from specllava.bench.timed_run import TimedRun
from specllava.growth.cost_model import LONGEST_VERIFY
from specllava.models.device import input_device
from specllava.models.feature_draft import FeatureDraft
from specllava.pair import Pair
from specllava.runtime.attention import AttentionMasks
from specllava.runtime.cache import BranchCache
from specllava.runtime.timing import now

LADDER: Final = (1, 2, 4, 8, 16, 32)  # widths that are timed whatever lanes used; of the draft the first three
AT_ONCE: Final = 12  # passes that are timed between two prompts
LEAST: Final = 3  # times that each is timed, the first, which warms up, left out
Model = Literal["target", "draft"]
Key = tuple[Model, int, int]  # model, width, context
Mask = Tensor | dict[str, Tensor] | None
Pass = Callable[[Tensor, Mask, Tensor], Callable[[], object]]  # ids, mask and positions to what runs the pass


class RawPasses:
    """Seconds of bare passes of a pair's models, at the widths that lanes used.

    They are timed between prompts, a few at a time and in an order that is drawn, so that whatever else the machine
    does falls on lanes and bare passes alike. So they are told by their mean, as lanes are.

    Args:
        contexts: columns of the KV cache before a pass, the fewest and the most that lanes will have.
    """

    def __init__(self, pair: Pair, contexts: tuple[int, int]) -> None:
        models: dict[Model, PreTrainedModel | None] = {"target": pair.target, "draft": pair.draft}
        self._passes = {
            (name, context): BarePasses(model, context)
            for name, model in models.items()
            for context in dict.fromkeys(contexts)
            if model is not None
        }
        self._widths: dict[Model, set[int]] = {"target": {*LADDER}, "draft": {*LADDER[:3]}}
        self._taken: defaultdict[Key, list[float]] = defaultdict(list)
        self._waiting: list[Key] = []
        self._order = random.Random(0)

    def note(self, runs: Iterable[TimedRun]) -> None:
        """Time the widths of some runs' passes from now on."""
        for run in runs:
            for step in run.steps:
                self._widths["target"].add(step.target_width)
                self._widths["draft"].update(step.draft_widths)

    def sample(self) -> None:
        """Time a few passes once."""
        for _ in range(AT_ONCE):
            if not self._waiting:
                self._waiting = self._keys()
                self._order.shuffle(self._waiting)
            self._time(self._waiting.pop())

    def means(self) -> tuple[RawPass, ...]:
        """Return the mean of each pass; those that were timed too seldom are timed now."""
        for _ in range(1 + LEAST):
            for key in self._keys():
                if len(self._taken[key]) <= LEAST:
                    self._time(key)
        return tuple(RawPass(*key, statistics.fmean(taken[1:])) for key, taken in sorted(self._taken.items()))

    def _keys(self) -> list[Key]:
        return [(name, width, context) for name, context in self._passes for width in sorted(self._widths[name])]

    def _time(self, key: Key) -> None:
        name, width, context = key
        bare = self._passes[name, context]
        bare.seconds(width)  # a lane's passes follow one another, so the processor's caches are warm
        self._taken[key].append(bare.seconds(width))


class BarePasses:
    """Bare passes of one model behind a context.

    Args:
        context: columns of the KV cache before each pass.
    """

    def __init__(self, model: PreTrainedModel, context: int) -> None:
        config = model.config.get_text_config()
        self._context, self._device = context, input_device(model)
        self._cache = BranchCache(config.num_hidden_layers, context + LONGEST_VERIFY)
        self._masks = AttentionMasks(config, self._device, model.dtype)
        kind = _feature_pass if isinstance(model, FeatureDraft) else _decoder_pass
        self._pass: Pass = kind(model, self._cache)
        self._ready: dict[int, Callable[[], object]] = {}

    @torch.inference_mode()
    def seconds(self, width: int) -> float:
        """Run a pass of ``width`` tokens, and return its seconds."""
        if not self._cache.length:
            self._made(self._context, 0)()
        if width not in self._ready:
            self._ready[width] = self._made(width, self._context)
        started = now(self._device)
        self._ready[width]()
        taken = now(self._device) - started
        self._cache.keep(self._context, [])
        return taken

    def _made(self, width: int, start: int) -> Callable[[], object]:
        """Lay the tensors of a pass ready: zeros as tokens, in a chain behind ``start`` columns."""
        ids = torch.zeros((1, width), dtype=torch.long, device=self._device)
        visible = np.tri(width, start + width, start, dtype=np.bool_)
        places = range(start, start + width)
        mask = self._masks.of(visible, places, range(start)) if width > 1 else None
        return self._pass(ids, mask, torch.tensor([[*places]], device=self._device))


def _decoder_pass(model: PreTrainedModel, cache: BranchCache) -> Pass:
    """Return what makes a pass of a model's decoder and head; a Llama's layers are called one after the other."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()

    def made(ids: Tensor, mask: Mask, places: Tensor) -> Callable[[], object]:
        if not isinstance(decoder, LlamaModel):
            kept = {"past_key_values": cache, "use_cache": True}
            return lambda: head(
                decoder(input_ids=ids, attention_mask=mask, position_ids=places, **kept).last_hidden_state
            )
        rotation = decoder.rotary_emb(decoder.embed_tokens(ids), position_ids=places)

        def through_layers() -> object:
            states = decoder.embed_tokens(ids)
            for layer in decoder.layers:
                states = layer(
                    states, attention_mask=mask, position_embeddings=rotation, past_key_values=cache, use_cache=True
                )
            return head(decoder.norm(states))

        return through_layers

    return made


def _feature_pass(model: FeatureDraft, cache: BranchCache) -> Pass:
    """Return what makes a pass of a draft that reads states, which are zeros here."""

    def made(ids: Tensor, mask: Mask, places: Tensor) -> Callable[[], object]:
        cosines, sines = model.rotations(places)

        def through_layers() -> object:
            embeds = model.embed(ids[0])
            inputs = model.inputs(embeds, torch.zeros_like(embeds), guessed=True, image=None)
            return model.logits(model(inputs[None], (cosines, sines), mask, cache)[0])

        return through_layers

    return made
