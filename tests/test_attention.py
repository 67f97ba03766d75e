"""Targets with sliding windows answer through trees as without; decoders that trees cannot serve are refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    Qwen2Config,
)

from specllava.config import DecodingConfig
from specllava.engine.decoders import Batch
from specllava.engine.engine import AttentionMasks, Engine
from specllava.engine.pool import KVCaches
from specllava.models.language_model import FULL, SLIDING, check_decoder, layer_types
from specllava.models.loading import load_target
from specllava.models.options import LoadOptions
from specllava.pair import Pair

WINDOW, LIMIT = 24, 20
MIXED = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}  # the first layer sees all
KINDS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "mistral": (MistralConfig, {"sliding_window": WINDOW}),
    "qwen2 mixed": (Qwen2Config, MIXED),
}
CONFIG = DecodingConfig(max_new_tokens=LIMIT, depth=4, entropy_threshold=0.2, min_log_prob=-50.0)


@cache
def target(kind: str, seed: int) -> LlavaForConditionalGeneration:
    """The tiny target with another decoder, in float64."""
    build, options = KINDS[kind]
    plain = models.target(0).config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
    text = build(
        **{name: getattr(plain.text_config, name) for name in names}, num_attention_heads=2, num_key_value_heads=1,
        **options,
    )  # fmt: skip
    own = {name: value for name, value in plain.to_dict().items() if name not in ("text_config", "model_type")}
    return models._random(LlavaForConditionalGeneration, LlavaConfig(**{**own, "text_config": text}), seed)


def pair(kind: str, seed: int, noise: float = 0.01) -> Pair:
    """The target, and itself with noise as a draft, so that it has a window as well."""
    speaker = copy.copy(target(kind, seed))
    speaker.generation_config = copy.deepcopy(speaker.generation_config)
    speaker.generation_config.eos_token_id = []
    draft, source = copy.deepcopy(speaker), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in draft.model.language_model.parameters():
            weight += noise * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
    return Pair("window", speaker, draft, models.processor(), "target", "draft")


@torch.inference_mode()
def reference(model: LlavaForConditionalGeneration, number: int) -> tuple[int, ...]:
    """The greedy answer by whole forward passes without any cache."""
    inputs = models.plain_inputs(number)
    ids = inputs["input_ids"]
    for _ in range(LIMIT):
        logits = model(input_ids=ids, pixel_values=inputs.get("pixel_values"), use_cache=False).logits[0, -1]
        ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
    return tuple(ids[0, -LIMIT:].tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_through_a_window_speculative_is_target_only_is_the_reference(kind: str, seed: int):
    both, number = pair(kind, seed), seed % len(models.CHATS)
    wanted = reference(both.target, number)
    prompt = both.prompt(models.picture(models.CHATS[number][0] or 0) if number != 3 else None, models.messages(number))
    assert prompt.length + LIMIT > WINDOW + 8
    for rule in ("entropy", "topk"):
        trace = models.decode(both, prompt, replace(CONFIG, rule=rule))
        assert trace.token_ids == wanted
        assert any(step.verification.accepted for step in trace.steps)
    assert models.decode(both, prompt, replace(CONFIG, drafter="none")).token_ids == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_matters(kind: str):
    """Guards the test above: without its window the same target answers something else."""
    windowed = target(kind, 0)
    config = copy.deepcopy(windowed.config)
    config.text_config.sliding_window = None
    config.text_config.layer_types = [FULL] * config.text_config.num_hidden_layers
    whole = LlavaForConditionalGeneration(config).double().eval()
    whole.load_state_dict(windowed.state_dict())
    assert reference(whole, 0) != reference(windowed, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_that_goes_on_sees_through_its_window_what_a_fresh_one_sees(kind: str):
    """Columns of earlier turns keep their positions."""
    both = pair(kind, 0)
    caches = KVCaches(both.engines)
    chat = [{"role": "user", "content": "Describe this."}]
    for _ in range(3):
        prompt = both.prompt(models.picture(0), chat)
        events = list(models.events(both, prompt, CONFIG, caches))
        said = [events[0].first_token, *(token for step in events[1:] for token in step.emitted)]
        assert tuple(said) == models.decode(both, prompt, CONFIG).token_ids
        answer = both.detokenizer.decode(said)
        chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And now?"}]
    assert events[0].reused_tokens > 0


@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_a_kept_branch_is_seen_through_the_window_as_its_tokens_alone(seed: int):
    """A plain decoder: pass after pass over trees, against whole passes over the kept branch."""
    config = MistralConfig(
        vocab_size=models.RECIPE.vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=5,
    )  # fmt: skip
    model = models.seeded(MistralForCausalLM, config, seed).double().eval()
    engine, text = Engine.of(model, 64), list(range(3, 12))
    engine.prefill(torch.tensor([text]), None)
    for number in range(3):
        tree, base = models.random_tree(10 * seed + number), engine.cache.length
        path = tree.path(len(tree) - 1)
        logits = engine.forward(Batch.of_tree(tree, base)).logits
        engine.commit(base, path)
        text += [tree.tokens[node] for node in path]
        wanted = model(torch.tensor([text]), use_cache=False).logits[0, -len(path) :]
        torch.testing.assert_close(logits[list(path)], wanted, rtol=0, atol=1e-9)
        assert engine.cache.positions == list(range(len(text)))


def test_a_llama_has_no_window_whatever_its_configuration_carries_along():
    """Checkpoints made of a Mistral keep its ``sliding_window``, which a Llama does not heed; tree passes did."""
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        sliding_window=3,
    )  # fmt: skip
    assert layer_types(config) == (FULL,)
    engine = Engine.of(models.seeded(LlamaForCausalLM, config, 0).eval(), 32)
    ids = list(range(5, 15))
    with torch.inference_mode():
        together = engine.forward(Batch(ids)).logits
        engine.truncate(0)
        alone = torch.cat([engine.forward(Batch([token])).logits for token in ids])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_masks_of_mixed_layers_come_by_type():
    config = Qwen2Config(num_hidden_layers=2, **{**MIXED, "sliding_window": 2})
    masks = AttentionMasks(config, torch.device("cpu"), torch.float32).of(
        torch.ones(1, 4, dtype=torch.bool).numpy(), [3], [0, 1, 2]
    )
    assert isinstance(masks, dict)
    assert (masks[FULL][0, 0, 0] == 0).tolist() == [True] * 4
    assert (masks[SLIDING][0, 0, 0] == 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "has linear_attention layers"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "has chunked_attention layers"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "embeddings of type longrope"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "embeddings of type longrope"),
    ],
)
def test_decoders_that_trees_cannot_serve_are_refused(changed: dict[str, Any], message: str):
    config = Qwen2Config(num_hidden_layers=2)
    for name, value in changed.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match=message) as refused:
        check_decoder("a model", config)
    assert "\n" not in str(refused.value) and str(refused.value).startswith("a model has ")
    check_decoder("a model", Qwen2Config(num_hidden_layers=2, **MIXED))


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention", "longrope"])
def test_such_a_target_is_refused_before_its_weights_are_read(kind: str, tmp_path: Path):
    document = target("qwen2 mixed", 0).config.to_dict()
    if kind == "longrope":
        factors = [1.0] * (models.RECIPE.target_hidden // 4)
        rope = {"rope_type": kind, "rope_theta": 1e4, "short_factor": factors, "long_factor": factors, "factor": 2.0}
        document["text_config"]["rope_parameters"] = {**rope, "original_max_position_embeddings": 16}
    else:
        document["text_config"]["layer_types"] = [kind, FULL]
    (tmp_path / "config.json").write_text(json.dumps(document, default=str))
    with pytest.raises(ValueError, match=kind) as refused:
        load_target("odd", tmp_path, None, LoadOptions(device="cpu"), print)
    assert "\n" not in str(refused.value)
