"""Random Llamas, and the same passes for several engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine
from specllava.models.drafts.eagle import DraftInputs
from specllava.prompt import Label
from support import models

SLOTS, WORDS = 512, models.RECIPE.vocabulary
ROPES = MappingProxyType({
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
})  # fmt: skip


@torch.inference_mode(False)
@torch.no_grad()
def llama(seed: int, layers: int = 2, **changed: Any) -> LlamaForCausalLM:
    """A random Llama of a random shape, some with their weights stored column by column."""
    source = Random(seed)
    heads, rope = source.choice((2, 3, 4, 8)), source.choice(list(ROPES))
    config = LlamaConfig(**{
        "vocab_size": WORDS, "num_hidden_layers": layers, "max_position_embeddings": SLOTS,
        "hidden_size": source.choice((24, 48, 96, 192)), "intermediate_size": source.choice((40, 80, 128)),
        "num_attention_heads": heads, "head_dim": source.choice((8, 16, 32, 64)),
        "num_key_value_heads": source.choice([count for count in (1, 2, 3, 4, 8) if heads % count == 0]),
        "attention_bias": source.random() < 0.3, "mlp_bias": source.random() < 0.3,
        "hidden_act": source.choice(("silu", "gelu")), "rope_parameters": {"rope_type": rope, **ROPES[rope]},
        **changed,
    })  # fmt: skip
    model = models.seeded(LlamaForCausalLM, config, seed).eval()
    drawn = torch.Generator().manual_seed(seed)
    for weight in model.parameters():  # gains too, which begin as ones
        weight.normal_(0.5 if weight.dim() == 1 else 0.0, 0.2, generator=drawn)
    for module in model.modules() if source.random() < 0.5 else ():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


def level(source: np.random.Generator, cached: int) -> Batch:
    """Tokens that see any slots before them and themselves, at any positions."""
    count = int(source.integers(2, 9))
    visible = np.concatenate([source.random((count, cached)) < 0.7, np.eye(count, dtype=np.bool_)], axis=1)
    visible[:, 0] = True
    return Batch(source.integers(WORDS, size=count).tolist(), visible, source.integers(cached, size=count).tolist())


def run_passes(
    engine: Engine, seed: int, entries: tuple[DraftInputs, list[Label]] | None = None, stale: float | None = None
) -> Iterator[Tensor]:
    """A prompt, then chains, levels and trees with commits between them: logits, states, at last keys and values.

    Args:
        entries: a prompt's, for an EAGLE head, which is given random states.
        stale: what lies in unused slots before each pass.
    """
    source, drawn = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    if entries is not None:
        engine.prefill_entries(*entries)
    else:
        yield engine.prefill(torch.tensor([list(range(3, 16))]), None).logits.clone()
    base = engine.cache.length
    for number in range(24):
        cached = engine.cache.length
        chain, tree = Batch([5, 6, 7][: 1 + number % 4], last=1), models.random_tree(100 * seed + number, number % 13)
        batch = (chain, Batch.of_tree(tree, cached), level(source, cached))[number % 3]
        if entries is not None:
            drafted = bool(source.integers(2))
            like = engine.decoder.static_states(len(batch.tokens))[drafted]
            batch = replace(batch, states=torch.randn(like.shape, generator=drawn, dtype=like.dtype), drafted=drafted)
        for slab in () if stale is None else engine.cache.slabs:
            slab[..., cached:, :] = stale
        output = engine.forward(batch)
        yield output.logits.clone()
        if output.states is not None:
            yield output.states.clone()
        if number % 3 == 2:
            engine.commit(base, [offset for offset in range(engine.cache.length - base) if source.random() < 0.7])
            base = engine.cache.length
    yield from (slab[..., : engine.cache.length, :] for slab in engine.cache.slabs)


