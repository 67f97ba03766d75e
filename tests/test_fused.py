"""A fused draft computes what transformers' own layers compute."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine
from specllava.models.drafts.draft_vlm import FusedLayer, fuse

CAPACITY = 64


def _llama(seed: int, **changed: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 4, **changed}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, num_hidden_layers=2, max_position_embeddings=CAPACITY, **sizes))
    for parameter in model.parameters():  # gains too, which begin as ones
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return model.eval()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [4, 2, 1])
@torch.inference_mode()
def test_fused_layers_compute_what_they_are_made_of(seed: int, groups: int) -> None:
    """A prompt, a branching tree behind it, and a single token behind the branch that is kept."""
    model = _llama(seed, num_key_value_heads=groups, head_dim=16)
    engines = Engine.of(model, CAPACITY), Engine.of(fuse(copy.deepcopy(model)), CAPACITY)
    assert all(isinstance(layer, FusedLayer) for layer in engines[1].decoder.decoder.layers)
    prompt = torch.randint(0, 97, (1, 11))
    visible = np.ones((4, 15), dtype=np.bool_)
    visible[:, 11:] = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    found = []
    for engine in engines:
        tree = Batch([3, 5, 7, 9], visible, [11, 11, 12, 12])
        logits = [engine.prefill(prompt, None).logits[None], engine.forward(tree).logits]
        engine.commit(11, [1, 3])
        found.append(torch.cat([*logits, engine.forward(Batch([2])).logits]))
    assert found[0].std() > 0.1
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-5 * found[0].abs().max().item())


def test_biases_of_queries_keys_and_values_alone_are_added() -> None:
    model = _llama(2, attention_bias=True, num_key_value_heads=2)
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    fused = fuse(copy.deepcopy(model))
    assert all(isinstance(layer, FusedLayer) for layer in fused.model.layers)
    torch.testing.assert_close(_logits(fused), _logits(model), rtol=0, atol=1e-5)


def test_several_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="one row, not 3"):
        fuse(_llama(0))(torch.ones((3, 5), dtype=torch.long))


@pytest.mark.parametrize("changed", [{"attention_bias": True}, {"mlp_bias": True}])
def test_layers_that_are_not_plain_stay_as_they_are(changed: dict[str, object]) -> None:
    model = fuse(_llama(0, **changed))
    assert not any(isinstance(layer, FusedLayer) for layer in model.model.layers)


def _logits(model: LlamaForCausalLM) -> torch.Tensor:
    """Of a prompt, by whole passes."""
    with torch.inference_mode():
        return model(torch.arange(9)[None], use_cache=False).logits[0]


def _other_weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in fuse(_llama(1)).state_dict().items() if name in model.state_dict()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_fused_draft_in_another_precision_computes_in_it(dtype: torch.dtype) -> None:
    model = fuse(_llama(0)).to(dtype)
    assert {weight.dtype for layer in model.model.layers for weight in layer.weights} == {dtype}
    close = 1e-4 if dtype is torch.float64 else 0.2
    torch.testing.assert_close(_logits(model).float(), _logits(_llama(0)), rtol=0, atol=close)


@pytest.mark.parametrize("assign", [False, True])
def test_a_fused_draft_computes_with_weights_that_are_loaded_into_it(assign: bool) -> None:
    model = fuse(_llama(0))
    model.load_state_dict(_other_weights(model), assign=assign)
    torch.testing.assert_close(_logits(model), _logits(fuse(_llama(1))), rtol=0, atol=0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_fused_draft_has_weights_of_its_own(clone: Callable[[LlamaForCausalLM], LlamaForCausalLM]) -> None:
    """A copy held them twice, and computed with those that nothing could change any more."""
    model, before = fuse(_llama(0)), _logits(fuse(_llama(0)))
    twin = clone(model)
    torch.testing.assert_close(_logits(twin), before, rtol=0, atol=0)
    twin.load_state_dict(_other_weights(twin))
    torch.testing.assert_close(_logits(twin), _logits(fuse(_llama(1))), rtol=0, atol=0)
    torch.testing.assert_close(_logits(model), before, rtol=0, atol=0)
    for layer in (*model.model.layers, *twin.model.layers):
        held = [weight.data_ptr() for weight in layer.held]
        assert [weight.data_ptr() for weight in layer.weights] == held
