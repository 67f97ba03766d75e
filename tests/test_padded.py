"""Engines whose passes have fixed shapes compute what others do, alone and replayed, whatever lies in their padding."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from support import models
from support.amount import ALL, sample
from support.marked_device import mark_model, marked_device
from support.recorder import Recorder, host_reads
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from benchmarks.identity import FORMATS, Runner
from specllava.chat import Chat
from specllava.core.config import RULES, DecodingConfig
from specllava.core.question import Question
from specllava.core.trace import StepTrace
from specllava.decoding import race
from specllava.lab import Lab
from specllava.lane import lane_of
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine
from specllava.runtime.kv_caches import EnginePool, KVCaches, build_engine_pool
from specllava.runtime.padded_engines import PaddedEngine, PaddedFeatureEngine, unpaddable
from specllava.runtime.padded_passes import EagerRunner, PassRunner, bucket_of, window_of
from specllava.runtime.passes import PassInput
from specllava.runtime.slab import Download, Upload

CAPACITY = 512
LAYERS = (1, -1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def features() -> Runner:
    return Runner(torch.float64)


@cache
def llama(dtype: torch.dtype) -> LlamaForCausalLM:
    """Grouped heads and a head size that is not hidden size by heads."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=models.RECIPE.vocabulary, max_position_embeddings=1024,
    )  # fmt: skip
    return models.seeded(LlamaForCausalLM, config, 0).to(dtype).eval()


def steps(engine: Engine, seeds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and states of trees, each behind what was kept of the one before; then of a few tokens in a row."""
    engine.keep(0, [])
    engine.prefill(torch.tensor([list(range(3, 16))]), None)
    for seed in seeds:
        tree, base = models.random_tree(seed, seed % 13), engine.cache.length
        output = engine.forward(PassInput.of_tree(tree, base))
        yield output.logits.clone(), output.states.clone()
        engine.keep(base, tree.path(seed % len(tree)))
        output = engine.forward(PassInput([5, 6, 7][: 1 + seed % 3], last=1))
        yield output.logits.clone(), engine.kept_states(0).clone()


def held(engine: Engine) -> Tensor:
    """Keys and values that count."""
    return torch.stack([layer.both[:, :, :, : engine.cache.length] for layer in engine.cache.layers])


# -------------------------------------------------------------------------------------------------- one engine


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("seed", range(2))
def test_padded_passes_compute_what_others_do(dtype: torch.dtype, near: float, seed: int):
    plain = Engine(llama(dtype), CAPACITY, LAYERS)
    padded = PaddedEngine(llama(dtype), CAPACITY, EagerRunner(), LAYERS)
    trees = range(100 * seed, 100 * seed + 12)
    for (logits, states), (same, same_states) in zip(steps(plain, trees), steps(padded, trees), strict=True):
        torch.testing.assert_close(same, logits, rtol=0, atol=near)
        torch.testing.assert_close(same_states, states, rtol=0, atol=near)
        assert torch.equal(same.argmax(-1), logits.argmax(-1))
    torch.testing.assert_close(held(padded), held(plain), rtol=0, atol=near)
    assert padded.cache.contents == plain.cache.contents


@pytest.mark.parametrize(("dtype", "seed"), [(torch.float64, 0), (torch.float64, 1), (torch.float32, 2)])
def test_a_replayed_pass_is_the_called_one_bit_for_bit(dtype: torch.dtype, seed: int):
    """Logits, states and the whole slab, its scratch columns included."""
    recorder = Recorder()
    called = PaddedEngine(llama(dtype), CAPACITY, EagerRunner(), LAYERS)
    replayed = PaddedEngine(llama(dtype), CAPACITY, recorder, LAYERS)
    trees = range(100 * seed, 100 * seed + 12)
    for one, same in zip(steps(called, trees), steps(replayed, trees), strict=True):
        assert all(map(torch.equal, one, same))
        assert torch.equal(called.cache.slab, replayed.cache.slab)
    assert recorder.replayed >= 12


@pytest.mark.parametrize("seed", range(2))
def test_what_lies_in_scratch_and_stale_columns_changes_nothing(seed: int):
    clean, poisoned = (PaddedEngine(llama(torch.float32), CAPACITY, EagerRunner(), LAYERS) for _ in range(2))
    trees = range(100 * seed, 100 * seed + 8)
    passes = steps(poisoned, trees)
    for expected in steps(clean, trees):
        for layer in poisoned.cache.layers:
            layer.both[:, :, :, layer.length :] = 1e30
        assert all(map(torch.equal, expected, next(passes)))
    assert float(poisoned.cache.slab.max()) > 1e29


def test_a_branch_is_kept_in_two_operations_and_without_waiting(monkeypatch: pytest.MonkeyPatch):
    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func._schema.name)
            return func(*args, **kwargs or {})

    engine = PaddedEngine(llama(torch.float32), CAPACITY, EagerRunner())
    engine.prefill(torch.tensor([[3, 4, 5]]), None)
    engine.forward(PassInput.of_tree(models.random_tree(0, 10), 3))
    reads: list[str] = []
    with host_reads(reads.append), Operations() as seen:
        engine.keep(3, [0, 2, 5, 9])
    moving = [name for name in seen.names if name not in ("aten::slice", "aten::view", "aten::select", "aten::unbind")]
    assert moving == ["aten::copy_", "aten::index_select", "aten::index_copy_"]  # the first is the upload
    assert not reads


def test_wider_passes_than_the_widest_bucket_run_as_they_come():
    plain = Engine(llama(torch.float64), CAPACITY)
    padded = PaddedEngine(llama(torch.float64), CAPACITY, Recorder())
    for tokens in (list(range(3, 103)), [7], list(range(3, 70))):
        batch = PassInput(tokens, last=1)
        torch.testing.assert_close(padded.forward(batch).logits, plain.forward(batch).logits, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="the cache holds 512 columns, 513 are needed"):
        padded.forward(PassInput([3] * (513 - padded.cache.length)))


def test_buckets_windows_and_capacities():
    assert [bucket_of(rows) for rows in (1, 2, 3, 5, 9, 17, 21, 33, 64)] == [1, 2, 4, 8, 16, 32, 32, 64, 64]
    with pytest.raises(ValueError, match="a pass over 65 tokens is wider than the widest bucket, 64"):
        bucket_of(65)
    assert [window_of(columns) for columns in (1, 512, 513, 1025, 1536)] == [512, 512, 1024, 1536, 1536]


# ------------------------------------------------------------------------------------------------ whole answers


def answer(pair: Pair, prompt: Any, config: DecodingConfig, engines: EnginePool) -> list[int]:
    trace = pair.collect(
        lane_of(config, prompt), models.stream(pair.request(lane_of(config, prompt), KVCaches(engines)))
    )
    return [trace.prefill.first_token, *(token for step in trace.steps for token in step.emitted)]


@pytest.mark.parametrize(
    ("kind", "rule"), [*(("mixed", rule) for rule in RULES), *((kind, "entropy") for kind in models.KINDS)]
)
def test_on_the_recorder_every_rule_says_what_the_target_says(kind: models.DraftKind, rule: str):
    """Against whole forward passes without a cache, in float64: over prompts, seeds and drafts."""
    engines, passes = recording()
    for seed in models.SEEDS:
        pair = models.pair(kind, seed)
        for number in (seed, 2 + seed):
            config = DecodingConfig(rule=rule, max_new_tokens=models.LONGEST, depth=4, nodes=10)
            said = answer(pair, models.prompt(number, seed), config, engines)
            assert tuple(said) == models.expected(number, seed, models.LONGEST)
    assert sum(recorder.replayed for recorder in passes) > 20


@pytest.mark.parametrize("rule", sample(["entropy", "topk", "chain"], 1))
def test_in_float32_the_recorder_says_what_eager_passes_say(rule: str, shipped: Any):
    engines, _ = recording()
    pair = shipped("float32")
    for number, question in enumerate(("Describe the picture.", "How many objects are there?")):
        config = DecodingConfig(rule=rule, max_new_tokens=24)
        prompt = pair.prompt(models.picture(number), question)
        assert answer(pair, prompt, config, engines) == answer(pair, prompt, config, EnginePool())


@pytest.mark.parametrize("name", sample(tuple(FORMATS), 5))
def test_drafts_that_read_states_grow_the_trees_that_they_grow_elsewhere(name: str):
    engines, passes = recording()
    for seed in sample((0, 1), 1):
        pair = features().pair(seed, name)
        prompt = pair.prompt(models.picture(seed), "What is this?")
        config = DecodingConfig(rule="topk", width=3, depth=4, nodes=9, max_new_tokens=14)
        grown = []
        for lender in (EnginePool(), engines):
            request = pair.request(lane_of(config, prompt), KVCaches(lender))
            grown.append([item.tree.tokens for item in models.stream(request) if isinstance(item, StepTrace)])
        assert grown[0] == grown[1]
    assert sum(recorder.replayed for recorder in passes) > (10 if ALL else 5)


def test_pairs_of_one_target_share_its_free_engines_and_no_draft_outlives_its_pair(shipped: Any):
    pair = replace(shipped("float32"), passes="padded")
    others = [pair.with_draft(Path("assets/toy/draft")) for _ in range(3)]
    config = DecodingConfig(max_new_tokens=6)
    said, slabs = set(), set()
    for one in (pair, *others):
        said.add(tuple(answer(one, one.prompt(models.picture(0), "Describe it."), config, one.engines)))
        gc.collect()  # caches give back what they held
        free = one.engines.engine(one.target, 1)
        slabs.add(id(free))
        one.engines.give_back([free])
    assert len(said) == 1 and len(slabs) == 1, "the target's engine of the first answer served all of them"
    drafts = [weakref.ref(one.draft) for one in others]
    del one, others
    gc.collect()
    assert not any(draft() for draft in drafts), "a pool kept the engine of a draft that was dropped"


def test_a_dialogue_that_outgrows_its_slab_goes_on(monkeypatch: pytest.MonkeyPatch):
    """A larger slab takes over what the smaller held; both turns are answered as they are elsewhere."""
    monkeypatch.setattr("specllava.pair.CHAT_TOKENS", 128)
    monkeypatch.setattr("specllava.runtime.padded_passes.COLUMNS", 64)
    config = DecodingConfig(max_new_tokens=24, depth=3, nodes=8)
    said = []
    for pair in (models.pair("mixed"), replace(models.pair("mixed"), passes="padded")):
        chat = Chat(pair)
        said.append([chat.ask(text, config=config).text for text in ("Describe this.", "And then? " * 6, "Why?")])
    assert said[0] == said[1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", ["model", "eagle3", "vispec", "none"])
def test_a_step_waits_once_for_each_level_and_once_for_the_verdict(
    rule: str, drafter: str, monkeypatch: pytest.MonkeyPatch
):
    pair = features().pair(0, drafter) if drafter in FORMATS else models.pair("mixed")
    config = DecodingConfig(
        rule=rule, drafter="none" if drafter == "none" else "model", depth=4, nodes=12, max_new_tokens=14
    )
    waits: list[str] = []
    levels = [0]
    fetch, forward = Download.fetch, (PaddedEngine.forward, PaddedFeatureEngine.forward, PaddedFeatureEngine.read)

    def reading(download: Download, rows: slice) -> list[list[float]]:
        waits.append("read")
        return fetch(download, rows)

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(engine: Any, *args: Any, **kwargs: Any) -> Any:
            levels[0] += engine.model is pair.draft
            sent[0] = 0
            output = method(engine, *args, **kwargs)
            assert sent[0] == 1, "one upload a pass"
            return output

        return run

    sent, send = [0], Upload.send

    def sending(upload: Upload, nbytes: int) -> None:
        sent[0] += 1
        send(upload, nbytes)

    monkeypatch.setattr(Download, "fetch", reading)
    monkeypatch.setattr(Upload, "send", sending)
    for method, owner in zip(forward, (PaddedEngine, PaddedFeatureEngine, PaddedFeatureEngine), strict=True):
        monkeypatch.setattr(owner, method.__name__, counting(method))
    prompt = models.prompt(0) if drafter not in FORMATS else pair.prompt(models.picture(0), "What is this?")
    request = pair.request(lane_of(config, prompt), KVCaches(EnginePool(EagerRunner)), record=False)
    request.prefill()
    request.propose()
    request.verify()  # the first step makes buffers
    trees = 0
    while request.finished is None:
        waits.clear()
        levels[0] = 0
        with host_reads(waits.append):
            request.propose()
            request.verify()
        assert len(waits) == 1 + levels[0] == 1 + len(request.draft_pass_tokens), waits
        trees += levels[0] > 0
    assert (trees > 4) == (drafter != "none")


@contextmanager
def tokens_read(draft: Any) -> Iterator[list[int]]:
    """Tokens of every pass through a draft's first layer, as the layer itself is given them."""
    read: list[int] = []
    layers = draft.layers if isinstance(draft, FeatureDraft) else draft.get_decoder().layers
    count = lambda _, args, kwargs: read.append([*args, *kwargs.values()][0].shape[1])  # noqa: E731
    hook = layers[0].register_forward_pre_hook(count, with_kwargs=True)
    yield read
    hook.remove()


@pytest.mark.parametrize(("name", "rule"), zip(["model", "model", *FORMATS], cycle(("topk", "chain"))))
def test_events_tell_how_many_tokens_each_pass_of_the_draft_read(name: str, rule: str):
    """In passes of any shape; those of the eager ones are counted by the draft's own layer."""
    pair = features().pair(0, name) if name in FORMATS else models.pair("mixed")
    config = DecodingConfig(rule=rule, width=3, depth=4, nodes=9, max_new_tokens=14)
    prompt = pair.prompt(models.picture(0), "What is this?")
    lane, widths, counted = lane_of(config, prompt), list[Any](), list[Any]()
    with tokens_read(pair.draft) as read:
        for event in race([pair.request(lane, KVCaches(EnginePool()))]):
            if isinstance(event.item, StepTrace):
                counted.append(tuple(read))
                widths.append(event.draft_pass_tokens)
            read.clear()
    assert widths == counted and max(map(len, widths)) > 1
    padded = race([pair.request(lane, KVCaches(recording()[0]))])
    assert [event.draft_pass_tokens for event in padded][1:] == widths


@pytest.mark.parametrize("name", sample(["model", "eagle"], 1))
def test_a_comparison_runs_passes_in_the_shapes_that_were_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    pair = features().pair(0, name) if name in FORMATS else models.pair("mixed")
    engines, passes = recording()
    vars(pair)["engines"] = engines
    called: list[str] = []
    for kind in (Engine, FeatureEngine):
        plain = kind.forward
        monkeypatch.setattr(kind, "forward", lambda *given, plain=plain: called.append("forward") or plain(*given))
    a, b = (DecodingConfig(rule=rule, width=3, depth=4, nodes=9, max_new_tokens=14) for rule in ("topk", "chain"))
    *_, found = Lab(pair).compare([Question("What is this?", models.picture(0))], 1, a, b)
    assert found.rows[0].sameness.identical
    *_, swept = Lab(pair).sweep(models.picture(0), "What is this?", "depth", a)
    assert swept.points and not called
    assert sum(recorder.replayed for recorder in passes) > 20


# -------------------------------------------------------------------------------------------- who lends engines


def recording() -> tuple[EnginePool, list[Recorder]]:
    """Engines that record their passes, and their recorders."""
    made: list[Recorder] = []

    def make() -> PassRunner:
        made.append(Recorder())
        return made[-1]

    return EnginePool(make), made


def test_one_slab_serves_answer_after_answer_and_two_lanes_have_two():
    engines, made = recording()
    pair, prompt = models.pair("mixed"), models.prompt(0)
    config = DecodingConfig(max_new_tokens=8)
    first = answer(pair, prompt, config, engines)
    assert len(made) == 2  # of target and draft
    assert answer(pair, prompt, config, engines) == first and len(made) == 2
    one, two = KVCaches(engines), KVCaches(engines)
    assert one.engine(pair.target, 400) is not two.engine(pair.target, 400) and len(made) == 3
    del one, two
    gc.collect()
    mine = KVCaches(engines)
    assert mine.engine(pair.target, 400).cache.length == 0 and len(made) == 3
    assert mine.engine(pair.target, 1600).cache.capacity == 2048 and len(made) == 4


def test_engines_that_wait_for_another_text_are_few():
    engines, made = recording()
    held = [KVCaches(engines) for _ in range(9)]
    for caches in held:
        caches.engine(models.target(0), 100)
        caches.engine(models.draft("bad"), 100)
    alive = [weakref.ref(caches.engine(models.target(0), 100)) for caches in held]
    del caches, held
    gc.collect()
    assert len(made) == 18 and sum(one() is not None for one in alive) == 3
    again = [KVCaches(engines) for _ in range(3)]
    assert all(one.engine(models.target(0), 100).cache.length == 0 for one in again) and len(made) == 18


def test_what_failed_in_the_middle_of_a_step_is_not_lent_again():
    engines, made = recording()
    caches = KVCaches(engines)
    broken = caches.engine(models.target(0), 100)
    with pytest.raises(RuntimeError, match="out of memory"), caches.in_use():
        raise RuntimeError("out of memory")
    del caches
    gc.collect()
    assert KVCaches(engines).engine(models.target(0), 100) is not broken and len(made) == 2


def test_what_cannot_be_padded_runs_as_it_comes_and_one_line_says_so(caplog: pytest.LogCaptureFixture):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    mistral = models.seeded(MistralForCausalLM, MistralConfig(**sizes, num_key_value_heads=2, vocab_size=32), 0)
    growing = LlamaConfig(**sizes, vocab_size=32, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    hooked, stored = (models.seeded(LlamaForCausalLM, LlamaConfig(**sizes, vocab_size=32), 0) for _ in range(2))
    hooked.model.layers[0]._hf_hook = object()
    stored.model.layers[0].mlp.up_proj.weight = nn.Parameter(torch.zeros((16, 16), dtype=torch.int8), False)
    reasons = {
        mistral: "its decoder is a MistralModel",
        models.seeded(LlamaForCausalLM, growing, 0): "its rotary embeddings are of type dynamic",
        hooked: "accelerate moves its states between devices",
        stored: "its weights are quantised",
    }
    engines = EnginePool(EagerRunner)
    with caplog.at_level(logging.WARNING):
        for model, why in reasons.items():
            assert unpaddable(model) == why
            assert [type(engines.engine(model, 64)) for _ in range(2)] == [Engine, Engine]
    told = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert told == list(reasons.values())
    for model, why in reasons.items():
        with pytest.raises(ValueError, match=f"cannot be decoded with exact passes: {why}"):
            EnginePool(EagerRunner, exact=True).engine(model, 64, rows=1)
        assert type(EnginePool(EagerRunner, exact=True).engine(model, 64)) is Engine  # which guesses, and no more
    draft = features().pair(0, "eagle").draft
    assert isinstance(draft, FeatureDraft) and unpaddable(draft) is None


def test_a_cpu_computes_as_ever_unless_it_is_asked():
    assert type(build_engine_pool(CPU, "auto", exact=False).engine(models.target(0), 64)) is Engine
    assert type(build_engine_pool(CPU, "auto", exact=True).engine(models.target(0), 64)) is PaddedEngine
    assert type(build_engine_pool(CPU, "padded", exact=False).engine(models.target(0), 64)) is PaddedEngine
    with pytest.raises(ValueError, match="CUDA graphs need a GPU and the pair is on cpu: use auto, eager or padded"):
        build_engine_pool(CPU, "graphs", exact=False)
    with pytest.raises(ValueError, match="exact passes are padded ones"):
        build_engine_pool(CPU, "eager", exact=True)


@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False), ("cuda:1", False)])
def test_on_a_gpu_cudnn_plans_no_attention(device: str, kept: bool):
    assert torch.backends.cuda.cudnn_sdp_enabled()
    try:
        build_engine_pool(torch.device(device), "eager", exact=False)
        assert torch.backends.cuda.cudnn_sdp_enabled() == kept
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


# ---------------------------------------------------------------------------------------------- host and device

SHORT = DecodingConfig(max_new_tokens=8)
ASKED = (
    SHORT,
    replace(SHORT, drafter="none"),
    replace(SHORT, temperature=1.0, top_p=0.9, seed=3),
    replace(SHORT, temperature=1.0, rule="fixed", children="drawn"),
)


@pytest.mark.parametrize("kind", ["draft VLM", "eagle3"])
@pytest.mark.parametrize("passes", ["eager", "padded"])
def test_passes_mix_no_tensors_of_host_and_device(passes: PassesName, kind: str):
    """On a device that is a mark, where mixing raises; the numbers are real, so the tokens are those of the CPU."""
    pair = models.pair("mixed") if kind == "draft VLM" else features().pair(0, kind)
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    if isinstance(draft, FeatureDraft):
        draft.bind(target)
    there = replace(pair, target=target, draft=draft).running(passes)
    asked = [(config, pair.running(passes).generate(models.picture(0), "What?", config).token_ids) for config in ASKED]
    with marked_device():
        for model in (target, draft):
            mark_model(model)
        for config, expected in asked:
            assert there.generate(models.picture(0), "What?", config).token_ids == expected


def test_the_marked_device_refuses_what_a_device_refuses():
    with marked_device() as device:
        there, here = torch.ones(3, device=device), torch.ones(3)
        assert (there + 1).device == (there * torch.tensor(2.0)).device == device and there.cpu().device == CPU
        assert torch.equal(there.cpu(), here) and there[torch.tensor([0])].device == device
        for mix in (lambda: there + here, lambda: torch.where(there > 0, there, here), lambda: there.numpy()):
            with pytest.raises(AssertionError, match="device"):
                mix()
