"""Bare passes: a model's layers and head on tensors that lie ready, with nothing around them but the clock."""

from __future__ import annotations

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
from specllava.models.device import input_device
from specllava.models.feature_draft import FeatureDraft
from specllava.pair import Pair
from specllava.runtime.attention import AttentionMasks
from specllava.runtime.cache import BranchCache
from specllava.runtime.timing import now

REPEATS: Final = 3
LADDER: Final = (1, 2, 4, 8, 16, 32)  # widths that are timed whatever lanes used; of the draft the first three
Model = Literal["target", "draft"]
Key = tuple[Model, int, int]  # model, width, context


class RawPasses:
    """Seconds of bare passes of a pair's models, at the widths and contexts that lanes used."""

    def __init__(self, pair: Pair) -> None:
        models: dict[Model, PreTrainedModel | None] = {"target": pair.target, "draft": pair.draft}
        self._models = {name: model for name, model in models.items() if model is not None}
        self._taken: defaultdict[Key, list[float]] = defaultdict(list)
        self._contexts: tuple[int, ...] = ()

    def medians(self) -> tuple[RawPass, ...]:
        """Return the median of each pass."""
        return tuple(RawPass(*key, statistics.median(seconds)) for key, seconds in sorted(self._taken.items()))

    @torch.inference_mode()
    def time(self, runs: Iterable[TimedRun]) -> None:
        """Time the widths of some runs' passes, behind the shortest and the longest context of the first such runs.

        All kinds of passes take turns, so that whatever else the machine does falls on all of them.
        """
        widths: dict[Model, set[int]] = {"target": {*LADDER}, "draft": {*LADDER[:3]}}
        contexts: set[int] = set(self._contexts)
        for run in runs:
            contexts |= set() if self._contexts else {run.prompt_tokens, run.prompt_tokens + len(run.token_ids)}
            for step in run.steps:
                widths["target"].add(step.target_width)
                widths["draft"].update(step.draft_widths)
        self._contexts = (min(contexts), max(contexts)) if contexts else ()
        passes = {
            (name, width, context): bare
            for name, model in self._models.items()
            for context in dict.fromkeys(self._contexts)
            for width, bare in bare_passes(model, sorted(widths[name]), context).items()
        }
        for repeat in range(1 + REPEATS):
            for key, bare in passes.items():
                seconds = bare()
                if repeat:  # the first is a warm-up
                    self._taken[key].append(seconds)


def bare_passes(model: PreTrainedModel, widths: Iterable[int], context: int) -> dict[int, Callable[[], float]]:
    """Return, for each width, what runs a pass behind ``context`` columns and returns its seconds."""
    widths = tuple(widths)
    config, device = model.config.get_text_config(), input_device(model)
    cache = BranchCache(config.num_hidden_layers, context + max(widths))
    masks = AttentionMasks(config, device, model.dtype)
    run = _feature_pass(model, cache) if isinstance(model, FeatureDraft) else _decoder_pass(model, cache)

    def inputs(width: int, start: int) -> tuple[Tensor, Tensor | dict[str, Tensor] | None, Tensor]:
        ids = torch.zeros((1, width), dtype=torch.long, device=device)
        visible = np.tri(width, start + width, start, dtype=np.bool_)
        places = range(start, start + width)
        mask = masks.of(visible, places, range(start)) if width > 1 else None
        return ids, mask, torch.tensor([[*places]], device=device)

    def timed(width: int) -> Callable[[], float]:
        bare = run(*inputs(width, context))

        def once() -> float:
            started = now(device)
            bare()
            seconds = now(device) - started
            cache.keep(context, [])
            return seconds

        return once

    run(*inputs(context, 0))()
    return {width: timed(width) for width in widths}


Pass = Callable[[Tensor, Tensor | dict[str, Tensor] | None, Tensor], Callable[[], object]]


def _decoder_pass(model: PreTrainedModel, cache: BranchCache) -> Pass:
    """Return what makes a pass of a model's decoder and head; a Llama's layers are called one after the other."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()

    def made(ids: Tensor, mask: Tensor | dict[str, Tensor] | None, places: Tensor) -> Callable[[], object]:
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

    def made(ids: Tensor, mask: Tensor | dict[str, Tensor] | None, places: Tensor) -> Callable[[], object]:
        cosines, sines = model.rotations(places)

        def through_layers() -> object:
            embeds = model.embed(ids[0])
            inputs = model.inputs(embeds, torch.zeros_like(embeds), guessed=True, image=None)
            return model.logits(model(inputs[None], (cosines, sines), mask, cache)[0])

        return through_layers

    return made
