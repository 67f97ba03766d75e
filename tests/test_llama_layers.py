"""Llama layers in fewer operations have the bits of transformers' own, packed ones their values; no hook is skipped.

A pass has the fastest number of threads that was measured, and not one that was lucky once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import models
from support.random_passes import SLOTS, llama, run_passes
from torch import Tensor, nn

from specllava.engine.cpu import FEWEST_ROWS, PackedWeights, can_pack, fastest_threads
from specllava.engine.cuda_graphs import CudaGraphs
from specllava.engine.decoders import Batch, LanguageModel, PassInputs
from specllava.engine.engine import Engine
from specllava.engine.kv_cache import KVCache

pytestmark = pytest.mark.usefixtures("no_gradients")
CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def call_layers(self: LanguageModel, ids: Tensor, inputs: PassInputs, cache: KVCache) -> tuple[Tensor, list[Tensor]]:
    """A pass through transformers' own layers, in place of ``LanguageModel._run_layers``."""
    states = self.decoder.embed_tokens(ids)
    rotation = self.decoder.rotary_emb(states, position_ids=self._position_ids(inputs.positions))
    for layer in self.decoder.layers:
        states = layer(states, attention_mask=inputs.mask, position_embeddings=rotation, past_key_values=cache)
    return self.decoder.norm(states), []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_keys_and_values_have_the_bits_of_transformers_own_layers(dtype: torch.dtype):
    """Over random shapes, in eager and in padded passes."""
    for seed in range(DTYPES.index(dtype), 16, 4):
        model = llama(seed).to(dtype)
        for graphs in (None, CudaGraphs(CPU, capture=False)):
            own, theirs = (Engine.of(model, SLOTS, graphs=graphs) for _ in range(2))
            theirs.decoder._run_layers = call_layers.__get__(theirs.decoder)
            assert all(map(torch.equal, run_passes(own, seed), run_passes(theirs, seed)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_products_are_the_plain_ones_within_rounding(dtype: torch.dtype):
    """Where the processor has no packed products of a precision, no model is packed and layers are called."""
    for seed in range(6):
        with torch.inference_mode(False):  # what is cast within it has no version, and is not packed
            model = llama(seed).to(dtype)
        packed = PackedWeights.of(model)
        assert (packed is not None) == can_pack(dtype)
        if packed is None:
            continue
        packed.refresh()
        for layer in (one for one in model.modules() if isinstance(one, nn.Linear)):
            for rows in (1, 3, 4, 5, 16, 33):
                states = torch.randn(1, rows, layer.in_features).to(dtype)
                product, called = packed(layer, states), layer(states)
                bias = None if layer.bias is None else layer.bias.double()
                exact = F.linear(states.double(), layer.weight.double(), bias)
                scale = F.linear(states.double().abs(), layer.weight.double().abs()).add(1)
                assert float(((product - exact).abs() / scale).max()) < 8 * torch.finfo(dtype).eps
                assert product.dtype == dtype and (rows >= FEWEST_ROWS[dtype] or torch.equal(product, called))
    assert not can_pack(torch.float64) and PackedWeights.of(llama(0).double()) is None


class Adapted(nn.Module):
    """A product with a low-rank one beside it, as LoRA has it (arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.base(states) + 3 * self.up(self.down(states))


class Doubled(nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def twice(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: 2 * plain(*args, **kwargs)


def doubled(module: Any, given: Any, output: Any) -> Any:
    return (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output


def doubled_in_place(weight: Tensor) -> Callable[[], Tensor]:
    weight.mul_(2)
    return partial(weight.mul_, 0.5)


def replaced(owner: Any, name: str, value: Any) -> Callable[[], None]:
    plain = getattr(owner, name)
    setattr(owner, name, value)
    return partial(setattr, owner, name, plain)


# Each changes a layer; what it returns changes it back, if the patch does not.
CHANGES: MappingProxyType[str, Callable[[pytest.MonkeyPatch, Any, Any], Any]] = MappingProxyType({
    "in place": lambda patch, layer, up: doubled_in_place(up.weight),
    "as adapters are merged": lambda patch, layer, up: doubled_in_place(up.weight.data),  # counts no version
    "other weight": lambda patch, layer, up: replaced(up, "weight", nn.Parameter(up.weight.flip(0))),
    "adapter": lambda patch, layer, up: replaced(layer.mlp, "up_proj", models.seeded(Adapted, up, 0)),
    "hook on a product": lambda patch, layer, up: patch.setitem(up._forward_hooks, 0, doubled),
    "forward of a product": lambda patch, layer, up: patch.setitem(vars(up), "forward", twice(up.forward)),
    "class of a product": lambda patch, layer, up: replaced(up, "__class__", Doubled),
})  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@torch.inference_mode(False)
@torch.no_grad()
def test_answers_are_those_of_generate_whatever_changes_between_them(change: str, monkeypatch: pytest.MonkeyPatch):
    """In float32, with packed weights and without: an answer is read as one chain, and its logits are transformers'."""
    model, prompt, answers = copy.deepcopy(models.target(0)).float(), models.prompt(3), []
    layer = model.get_decoder().layers[0]
    engines = [Engine.of(model, SLOTS, packed=packed) for packed in (None, PackedWeights.of(model))]
    assert (engines[1].decoder._packed is not None) == can_pack(torch.float32)

    def check() -> None:
        returned = {"output_logits": True, "return_dict_in_generate": True}
        done = model.generate(**models.plain_inputs(3), do_sample=False, max_new_tokens=24, **returned)
        answer, wanted = done.sequences[0, prompt.length :].tolist(), torch.cat(done.logits)
        for engine in engines:
            engine.truncate(0)  # drops what was read by other weights
            logits = engine.prefill(prompt.input_ids, None).logits[None]
            logits = torch.cat([logits, engine.forward(Batch(answer[:-1])).logits])
            torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)
            assert logits.argmax(-1).tolist() == answer
        answers.append(answer)

    check()
    for _ in range(2):
        undo = CHANGES[change](monkeypatch, layer, layer.mlp.up_proj)
        check()
        (undo or monkeypatch.undo)()
        check()
    assert answers[0] == answers[2] == answers[4] != answers[1] == answers[3]


@pytest.mark.parametrize(
    ("costs", "most", "fastest"),
    [
        ({1: 8, 2: 5, 4: 3}, 4, 4), ({1: 8, 2: 5, 4: 9}, 4, 2), ({1: 1, 2: 5, 3: 5}, 3, 1),
        ({1: 97, 2: 98, 6: 100, 4: 99}, 6, 6), ({1: 94, 2: 98, 6: 100, 4: 99}, 6, 1),
    ],
)  # fmt: skip
def test_the_fastest_number_of_threads_is_the_cheapest_one_unless_more_are_as_good(costs, most, fastest, monkeypatch):
    """By a clock that counts what each step costs: every fifth one takes ten times as long, as on a busy machine."""
    clock, threads, steps = [0.0], [7], list[int]()
    monkeypatch.setattr("specllava.engine.cpu.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))

    def step() -> None:
        steps.append(threads[0])
        clock[0] += costs.get(threads[0], 1000) * (10 if len(steps) % 5 == 0 else 1)

    assert fastest_threads(step, 1) == 1 and not steps  # nothing to choose from
    monkeypatch.setattr("specllava.engine.cpu.SECONDS", 5000)
    assert fastest_threads(step, most) == fastest and threads == [7]
    assert steps[0] == 7 and steps[1 : 1 + len(costs)] == sorted(costs) and {*steps[1:]} == {*costs}
    steps.clear()
    monkeypatch.setattr("specllava.engine.cpu.SECONDS", 0)
    fastest_threads(step, most)
    assert steps == [7, *sorted(costs)]

    def fail() -> None:
        if threads[0] != 7:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fastest_threads(fail, most)
    assert threads == [7]
