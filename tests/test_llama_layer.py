"""Layers and norms in fewer operations have the bits of transformers' own modules, and no hook is passed over."""

from __future__ import annotations

import copy
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from specllava.core.tree import ROOT_PARENT, DraftTree
from specllava.runtime.cache import BranchCache
from specllava.runtime.engine import Engine
from specllava.runtime.llama_layer import Rotation, run_layer, run_norm
from specllava.runtime.padded_engines import PaddedEngine
from specllava.runtime.padded_passes import EagerRunner
from specllava.runtime.passes import PassInput

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WORDS, COLUMNS = 97, 512
ROPES = MappingProxyType({
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
})  # fmt: skip


class Operations(TorchDispatchMode):
    """Mode that counts operations that compute, each a launch at least; views compute nothing."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        self.count += not (aliases and _shares(made, args))
        return made


def _shares(made, args):
    """Return whether what may be a view is one: a cast or another shape copies where it must."""
    first, *_ = tree_leaves(made)
    return any(torch.is_tensor(arg) and arg.untyped_storage()._cdata == first.untyped_storage()._cdata for arg in args)


def count_operations(run):
    with Operations() as operations:
        run()
    return operations.count


def llama(seed: int, layers: int = 2, **changed: Any) -> LlamaForCausalLM:
    """A random Llama of a random shape, some with their weights stored column by column."""
    source = Random(seed)
    heads, rope = source.choice((2, 3, 4, 8)), source.choice(list(ROPES))
    config = LlamaConfig(**{
        "vocab_size": WORDS, "num_hidden_layers": layers, "max_position_embeddings": COLUMNS,
        "hidden_size": source.choice((24, 48, 96, 192)), "intermediate_size": source.choice((40, 80, 128)),
        "num_attention_heads": heads, "head_dim": source.choice((8, 16, 32, 64)),
        "num_key_value_heads": source.choice([count for count in (1, 2, 3, 4, 8) if heads % count == 0]),
        "attention_bias": source.random() < 0.3, "mlp_bias": source.random() < 0.3,
        "hidden_act": source.choice(("silu", "gelu")), "rope_parameters": {"rope_type": rope, **ROPES[rope]},
        **changed,
    })  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():  # gains too, which begin as ones
        nn.init.normal_(weight, 0.5 if weight.dim() == 1 else 0.0, 0.2)
    for module in model.modules() if source.random() < 0.5 else ():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    return model


def passes(source: Random) -> list[PassInput]:
    """A prompt, a token, a tree, and a chain behind them."""
    ids = lambda count: [source.randrange(WORDS) for _ in range(count)]  # noqa: E731
    read, nodes = source.randint(2, 60), source.randint(2, 40)
    parents = (ROOT_PARENT, *(source.randrange(node) for node in range(1, nodes)))
    tree = DraftTree(tuple(ids(nodes)), parents, (0.0,) * nodes, (None,) * nodes)
    return [PassInput(ids(read)), PassInput(ids(1)), PassInput.of_tree(tree, read + 1), PassInput(ids(7))]


def called(self: Engine, ids: Tensor, mask: Any, at: Any) -> tuple[Tensor, list[Tensor]]:
    """A pass through transformers' own layers, in place of ``Engine._through_layers``."""
    states = self.decoder.embed_tokens(ids)
    rotation = self.decoder.rotary_emb(states, position_ids=self._position_ids(at))
    for layer in self.decoder.layers:
        states = layer(states, attention_mask=mask, position_embeddings=rotation, past_key_values=self.cache)
    return self.decoder.norm(states), []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_logits_keys_and_values_have_the_bits_of_transformers_own_layers(dtype: torch.dtype):
    """Over random shapes, in passes of any shape and in padded ones."""
    for seed in range(16):
        model = llama(seed).to(dtype)
        for engine, *more in ((Engine,), (PaddedEngine, EagerRunner())):
            theirs = type("Theirs", (engine,), {"_through_layers": called})
            one, other = engine(model, COLUMNS, *more), theirs(model, COLUMNS, *more)
            for batch in passes(Random(seed)):
                assert torch.equal(one.forward(batch).logits, other.forward(batch).logits)
            for layer, wanted in zip(one.cache.layers, other.cache.layers, strict=True):
                assert torch.equal(layer.both[..., : one.cache.length, :], wanted.both[..., : one.cache.length, :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_has_the_bits_of_transformers_own_and_learns_alike(dtype: torch.dtype):
    for seed in range(40):
        torch.manual_seed(seed)
        norm = LlamaRMSNorm(int(torch.randint(4, 4200, ())), 1e-5).to(dtype).eval()
        nn.init.normal_(norm.weight)
        states = (10 ** float(torch.randn(())) * torch.randn(1, 7, len(norm.weight))).to(dtype).requires_grad_()
        found, wanted = run_norm(norm, states), norm(states)
        assert torch.equal(found, wanted)
        (one, same) = (torch.autograd.grad(each.float().square().sum(), norm.weight)[0] for each in (found, wanted))
        torch.testing.assert_close(one, same)


@torch.inference_mode()
def test_a_padded_pass_takes_23_operations_a_layer():
    """In half precision, 32 layers deep as LLaVA-1.5-7B is: 1,305 with the layers as they are called."""
    model = llama(0, 32, hidden_size=64, num_attention_heads=2, num_key_value_heads=2, rope_parameters=None)
    counts = []
    for layers in (32, 16):
        model.model.layers = model.model.layers[:layers]
        engine = PaddedEngine(model.bfloat16(), COLUMNS, EagerRunner())
        engine.forward(PassInput([1] * 9))
        counts.append(count_operations(lambda engine=engine: engine.forward(PassInput([1] * 8))))
    assert counts[0] < 760 and counts[0] - counts[1] == 16 * 23
    engine._through_layers = called.__get__(engine)
    assert count_operations(lambda: engine.forward(PassInput([1] * 8))) > 16 * 40


@torch.inference_mode()
def test_hidden_states_that_transformers_gathered_once_cost_no_operation_later():
    """It leaves hooks on every layer, from the first prompt on whose draft reads the target's states."""
    model = llama(1, 8, attention_bias=False, mlp_bias=False)
    counts, said = [], []
    for _ in range(2):
        engine = PaddedEngine(model, COLUMNS, EagerRunner(), (1, 2))
        engine.forward(PassInput([1] * 9))
        counts.append(count_operations(lambda engine=engine: said.append(engine.forward(PassInput([1] * 8)).states)))
        engine.prefill(torch.ones((1, 5), dtype=torch.long), None)
    assert all(layer._forward_hooks for layer in model.model.layers)
    assert counts[0] == counts[1] and torch.equal(*said)


class Scaled(LlamaDecoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward(*args, **kwargs)


def hooked(layer: LlamaDecoderLayer) -> None:
    layer.register_forward_hook(lambda module, given, output: 2 * output)


def replaced(layer: LlamaDecoderLayer) -> None:
    """As accelerate does where weights lie elsewhere."""
    plain = layer.forward
    layer.forward = lambda *args, **kwargs: 2 * plain(*args, **kwargs)


def subclassed(layer: LlamaDecoderLayer) -> None:
    layer.__class__ = Scaled


def inside(layer: LlamaDecoderLayer) -> None:
    layer.self_attn.register_forward_hook(lambda module, given, output: (2 * output[0], output[1]))


def at_the_norm(layer: LlamaDecoderLayer) -> None:
    layer.input_layernorm.register_forward_pre_hook(lambda module, given: (2 * given[0].square(),))


@pytest.mark.parametrize("change", [hooked, replaced, subclassed, inside, at_the_norm])
@torch.inference_mode()
def test_what_somebody_changed_of_a_layer_happens(change: Any):
    model = llama(3).double()
    plain, changed = model.model.layers[0], copy.deepcopy(model.model.layers[0])
    change(changed)
    states = torch.randn(1, 5, model.config.hidden_size, dtype=torch.float64)
    mask = torch.where(torch.from_numpy(np.tri(5, dtype=np.bool_)), 0.0, -1e30)[None, None].double()
    rotation = Rotation.of(*model.model.rotary_emb(states, position_ids=torch.arange(5)[None]))
    found = [run_layer(layer, states, mask, rotation, BranchCache(2, 8)) for layer in (plain, changed)]
    wanted = [
        layer(states, attention_mask=mask, position_embeddings=rotation[:2], past_key_values=BranchCache(2, 8))
        for layer in (plain, changed)
    ]
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert not torch.equal(found[0], found[1])
