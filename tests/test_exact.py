"""Exact passes: target-only and speculative lanes verify by the same operations of the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import models
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specllava.cli.options import PairOptions, load_pair
from specllava.core.config import DecodingConfig
from specllava.lane import lane_of
from specllava.pair import Pair
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.padded_passes import PaddedPasses

Operation = tuple[str, tuple[tuple[int, ...], ...]]


class _Operations(TorchDispatchMode):
    """Names of operations, with the shapes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = tuple(tuple(one.shape) for one in args if isinstance(one, Tensor))
        self.found.append((func._schema.name, shapes))
        return func(*args, **kwargs or {})


def target_passes(
    pair: Pair, prompt: Any, config: DecodingConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], set[tuple[Operation, ...]]]:
    """What a lane says, and the kinds of passes of its target."""
    kinds: set[tuple[Operation, ...]] = set()
    run = PaddedPasses.run

    def watched(passes: PaddedPasses, kind: Any, shape: Any, batch: Any, compute: Callable[[], Tensor], summary: Any):
        def seen() -> Tensor:
            with _Operations() as operations:
                logits = compute()
            if logits.shape[-1] == pair.target.config.get_text_config().vocab_size and passes is engine.passes:
                kinds.add(tuple(operations.found))
            return logits

        return run(passes, kind, shape, batch, seen, summary)

    caches = KVCaches(pair.engines)
    request = pair.request(lane_of(config, prompt), caches)
    with monkeypatch.context() as patched:
        patched.setattr(PaddedPasses, "run", watched)
        request.prefill()
        engine = request._engine
        while request.finished is None:
            request.propose()
            request.verify()
    return request.emitted, kinds


@pytest.mark.parametrize("rule", ["entropy", "chain", "topk"])
@pytest.mark.parametrize("seed", models.SEEDS)
def test_both_lanes_run_one_and_the_same_pass(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    config = DecodingConfig(rule=rule, depth=4, nodes=10, max_new_tokens=models.LONGEST)
    alone, prompt = replace(config, drafter="none"), models.prompt(0, seed)
    pair = models.pair("mixed", seed)
    said = {}
    for exact in (True, False):
        running = replace(pair.running("padded", exact), costs=models.COSTS)
        lanes = [target_passes(running, prompt, one, monkeypatch) for one in (alone, config)]
        said[exact] = [tokens for tokens, _ in lanes]
        (_, single), (_, several) = lanes
        assert (single == several and len(single) == 1) == exact
    assert all(tuple(tokens) == models.expected(0, seed, models.LONGEST) for both in said.values() for tokens in both)


def test_a_tree_that_no_bucket_holds_is_refused():
    pair = models.pair("mixed").running("padded", exact=True)
    request = pair.request(lane_of(DecodingConfig(nodes=64), models.prompt(3)))
    with pytest.raises(ValueError, match="exact passes verify up to 63 guesses, not 64: ask for fewer nodes"):
        request.prefill()


def test_how_passes_run_is_an_option_of_every_command():
    pair = load_pair(PairOptions(exact=True, device="cpu"))
    assert (pair.passes, pair.exact) == ("auto", True)
    assert load_pair(PairOptions(device="cpu")).exact is False
    with pytest.raises(ValueError, match="exact passes are padded ones: leave passes at auto, padded or graphs"):
        load_pair(PairOptions(passes="eager", exact=True, device="cpu"))
    with pytest.raises(ValueError, match="CUDA graphs need a GPU and the pair is on cpu"):
        load_pair(PairOptions(passes="graphs", device="cpu"))
    assert torch.device("cpu") == pair.device
