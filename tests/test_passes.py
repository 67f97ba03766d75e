"""Padded, captured and exact passes compute what eager ones do; captures are outside of clocks and of answers."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support import models
from support.cases import ALL, sample
from support.chats import columns_of
from support.fake_cuda import REFUSAL, FakeCuda, captured, host_reads
from support.marked_device import mark_model, marked_device
from support.random_passes import SLOTS, llama, run_passes
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from benchmarks.identity import DRAFTERS, FORMATS, Runner, cases
from specllava.chat import Chat
from specllava.config import RULES, DecodingConfig
from specllava.engine import cuda_graphs, kv_cache
from specllava.engine.cuda_graphs import WINDOW, CudaGraphs, GraphRunner, StaticInputs, bucket_of, window_of
from specllava.engine.decoders import Batch, prompt_entries, unpaddable
from specllava.engine.engine import Engine
from specllava.engine.pool import EXACT_ROWS, EnginePool, EnginePools, KVCaches
from specllava.models.drafts.eagle import FeatureDraft
from specllava.models.options import PassesName
from specllava.pair import Pair
from specllava.spec_decode import tree_drafter
from specllava.spec_decode.loop import Lane, run_lanes
from specllava.trace import Prefill, StepTrace

pytestmark = pytest.mark.usefixtures("no_gradients")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHORT = DecodingConfig(rule="topk", width=3, depth=4, nodes=9, max_new_tokens=14)
FEW = tuple(FORMATS) if ALL else ("eagle", "eagle3", "vispec")
random_pairs = cache(Runner)  # by their precision
DRAWN = {"rule": "fixed", "branching": (2, 2, 2), "children": "drawn", "temperature": 1.0}


def pair_named(name: str, seed: int = 0) -> Pair:
    return random_pairs(torch.float64).pair(seed, name) if name in FORMATS else models.pair("mixed", seed)


# --------------------------------------------------------------------------------------------------- padded passes


@cache
def eagle_prompt(name: str) -> Any:
    """Entries of a prompt with a picture, and their labels."""
    pair = random_pairs(torch.float64).pair(0, name)
    prompt = pair.prompt(models.picture(0), "What is this?")
    engine = Engine.of(pair.target, SLOTS, tuple(pair.draft.config.state_layers))
    states = engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).states
    return prompt_entries(pair.draft, pair.target, prompt, states)


@pytest.mark.parametrize(
    ("name", "dtype", "near"),
    [("", torch.float64, 1e-12), ("", torch.float32, 2e-5), *((name, torch.float64, 1e-12) for name in FEW)],
)
def test_padded_and_captured_passes_compute_what_eager_ones_do(name: str, dtype: torch.dtype, near: float, monkeypatch):
    """Captured ones bit for bit, with their scratch slots; whatever lies in unused slots changes nothing."""
    cuda = FakeCuda(monkeypatch)
    for seed in range(1 if name else 3):
        model = random_pairs(torch.float64).pair(0, name).draft if name else llama(seed).to(dtype)
        layers, entries = ((), eagle_prompt(name)) if name else ((1, -1), None)
        called, replayed = (CudaGraphs(CPU, capture) for capture in (False, True))
        eager, padded, captured, other = (
            Engine.of(model, SLOTS, layers, graphs) for graphs in (None, called, replayed, called)
        )
        passes = [run_passes(one, seed, entries) for one in (eager, padded, captured)]
        for wanted, same, again, stale in zip(*passes, run_passes(other, seed, entries, 1e30), strict=True):
            torch.testing.assert_close(same, wanted, rtol=0, atol=near * float(wanted.abs().max()))
            assert torch.equal(same, again) and torch.equal(same, stale)
        assert all(map(torch.equal, padded.cache.slabs, captured.cache.slabs))
        assert padded.cache.labels == eager.cache.labels and padded.cache.positions == eager.cache.positions
        assert max(float(slab.max()) for slab in other.cache.slabs) > 1e29 and replayed.captured > 3
    assert cuda.replays > 20


def test_passes_of_any_width_run_and_the_capacity_is_the_limit():
    assert [bucket_of(rows) for rows in (1, 2, 3, 5, 9, 17, 21, 33, 64)] == [1, 2, 4, 8, 16, 32, 32, 64, 64]
    assert [window_of(slots) for slots in (1, 512, 513, 1025, 1536)] == [512, 512, 1024, 1536, 1536]
    model = llama(0).double()
    eager, padded = (Engine.of(model, SLOTS, graphs=graphs) for graphs in (None, CudaGraphs(CPU, capture=False)))
    for tokens in (list(range(3, 103)), [7], list(range(3, 70))):
        batch = Batch(tokens, last=1)
        torch.testing.assert_close(padded.forward(batch).logits, eager.forward(batch).logits, rtol=1e-9, atol=1e-9)
    for engine in (eager, padded):
        with pytest.raises(ValueError, match="the KV cache has 512 slots, 513 are needed"):
            engine.forward(Batch([3] * (513 - engine.cache.length)))


# -------------------------------------------------------------------------------------------------- whole answers


@pytest.mark.parametrize(("name", "rule"), zip(("draft VLM", *FEW), cycle(("chain", "topk"))))
def test_trees_and_tokens_are_those_of_eager_passes(name: str, rule: str, monkeypatch: pytest.MonkeyPatch):
    """Drawn ones too. A drafter notes what each of its passes read, as its own layer counts it."""
    FakeCuda(monkeypatch)
    pair = pair_named(name)
    prompt = pair.prompt(models.picture(0), "What is this?")
    others = [replace(pair, passes="padded"), captured(pair)]
    for config in (replace(SHORT, rule=rule), replace(SHORT, **DRAWN, seed=1)):
        wanted, counted = [], []
        with columns_of(pair.draft) as read:
            request = pair.request(Lane.of(config, prompt))
            for event in run_lanes([request]):
                if isinstance(event.item, StepTrace):
                    counted.append(tuple(read))
                    wanted.append((event.item.tree.tokens, event.item.emitted, request.drafter.pass_tokens))
                read.clear()
        assert [passes for *_, passes in wanted] == counted and max(map(len, counted)) > 1
        for other in others:
            request = other.request(Lane.of(config, prompt))
            steps = (event.item for event in run_lanes([request]) if isinstance(event.item, StepTrace))
            assert [(step.tree.tokens, step.emitted, request.drafter.pass_tokens) for step in steps] == wanted
            assert other.pass_mode == ("padded" if other is others[0] else "graphs")


@pytest.mark.parametrize(("rule", "drafter"), [*zip(RULES, cycle(("model", "eagle3", "vispec"))), ("topk", "none")])
def test_a_step_waits_once_for_each_level_and_once_for_the_verdict(rule: str, drafter: str, monkeypatch):
    pair = replace(pair_named(drafter), passes="padded")
    own = "none" if drafter == "none" else "model"
    config = replace(SHORT, rule=rule, drafter=own, nodes=12, max_new_tokens=models.LONGEST)
    waits, uploads = list[str](), list[str]()

    def apart(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """An upload, which prepares pinned memory of the host and waits for nothing."""

        def run(*args: Any) -> Any:
            before = len(waits)
            done = plain(*args)
            del waits[before:]
            uploads.append(name)
            return done

        return run

    monkeypatch.setattr(StaticInputs, "upload", apart("inputs", StaticInputs.upload))
    upload = apart("slots", kv_cache.upload)
    for module in (kv_cache, tree_drafter):
        monkeypatch.setattr(module, "upload", upload)
    prompt = pair.prompt(models.picture(0), "What is this?")
    request = pair.request(Lane.of(config, prompt), record=False)
    request.prefill()
    request.propose()
    request.verify()  # the first step makes buffers
    trees = 0
    while request.finished is None:
        waits.clear()
        uploads.clear()
        with host_reads(waits.append):
            request.propose()
            request.verify()
        assert len(waits) == uploads.count("inputs") == 1 + len(request.drafter.pass_tokens), waits
        trees += bool(request.drafter.pass_tokens)
    assert (trees > 4) == (drafter != "none")


# ------------------------------------------------------------------------------------------------------------ pools


def test_engines_serve_one_text_after_the_other(monkeypatch: pytest.MonkeyPatch):
    """A new one is made where none is free, or where texts have outgrown those that are; few wait for another text."""
    made, build = list[Any](), Engine.of
    monkeypatch.setattr(Engine, "of", lambda *args: made.append(weakref.ref(built := build(*args))) or built)
    pair = replace(models.pair("mixed"), passes="padded")
    first = models.decode(pair, models.prompt(0), SHORT).token_ids
    assert models.decode(pair, models.prompt(0), SHORT).token_ids == first and len(made) == 2  # of target and draft
    one, two = KVCaches(pair.engines), KVCaches(pair.engines)
    assert one.target(400) is not two.target(400) and len(made) == 3
    del one, two
    larger = KVCaches(pair.engines)
    assert larger.target(400).cache.length == 0 and len(made) == 3
    assert larger.target(1600).cache.capacity == 2048 and len(made) == 4
    several = [KVCaches(pair.engines) for _ in range(9)]
    alive = [weakref.ref(caches.target(100)) for caches in several]
    with pytest.raises(RuntimeError, match="out of memory"), several[0].in_use():
        raise RuntimeError("out of memory")
    del larger, several
    gc.collect()
    assert sum(engine() is not None for engine in alive) == 3 and alive[0]() is None  # which may hold half a step
    count = len(made)
    again = [KVCaches(pair.engines) for _ in range(3)]
    assert all(caches.target(100).cache.length == 0 for caches in again) and len(made) == count


def test_pairs_of_one_target_share_its_free_engines_and_no_draft_outlives_its_pair(shipped: Any):
    pair = replace(shipped("float32"), passes="padded")
    _ = pair.engines
    others = [pair.with_draft(Path("assets/toy/draft")) for _ in range(3)]
    answers, engines = set(), set()
    for one in (pair, *others):
        answers.add(one.generate(models.picture(0), "Describe it.", SHORT).token_ids)
        gc.collect()
        free = one.engines.target.take(1)
        engines.add(id(free))
        one.engines.target.give_back(free)
    assert len(answers) == 1 and len(engines) == 1, "the target's engine of the first answer served all of them"
    drafts = [weakref.ref(one.draft) for one in others]
    del one, others
    gc.collect()
    assert not any(draft() for draft in drafts), "a pool kept the engine of a draft that was dropped"


def test_what_cannot_be_padded_runs_as_it_comes_and_one_line_says_so(caplog: pytest.LogCaptureFixture):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {**sizes, "num_key_value_heads": 2, "vocab_size": 32}
    growing = LlamaConfig(**config, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    moved, stored = (models.seeded(LlamaForCausalLM, LlamaConfig(**config), 0) for _ in range(2))
    moved.model.layers[0]._hf_hook = object()
    stored.model.layers[0].mlp.up_proj.weight = nn.Parameter(torch.zeros((16, 16), dtype=torch.int8), False)
    reasons = {
        models.seeded(MistralForCausalLM, MistralConfig(**config), 0): "its decoder is a MistralModel",
        models.seeded(LlamaForCausalLM, growing, 0): "its rotary embeddings are of type dynamic",
        moved: "accelerate moves its states between devices",
        stored: "its weights are quantised",
    }
    padded = CudaGraphs(CPU, capture=False)
    for model, why in reasons.items():
        assert unpaddable(model) == why
        with caplog.at_level(logging.WARNING):
            pool = EnginePool(model, padded)
        assert pool.mode == "eager" and pool.take(64).runner is None
        assert caplog.messages[-1].partition(": ")[2] == why
        with pytest.raises(ValueError, match=f"cannot be decoded with exact passes: {why}"):
            EnginePool(model, padded, exact=True)
    assert unpaddable(random_pairs(torch.float64).pair(0, "eagle").draft) is None
    assert len(caplog.messages) == len(reasons)


def test_passes_run_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    """On a CPU as they come, unless they must be exact; on a GPU captured, and there cuDNN plans no attention."""
    pair = models.pair("mixed")
    for passes, exact, mode in (("auto", False, None), ("auto", True, "padded; exact"), ("padded", False, "padded")):
        running = replace(pair, passes=passes, exact=exact)
        assert running.generate(None, "Why?", replace(SHORT, max_new_tokens=4)).setting.passes == mode
    refused = {("graphs", False): "CUDA graphs need a GPU and the pair is on cpu: use auto, eager or padded",
               ("eager", True): "exact passes are padded ones: leave passes at auto, padded or graphs"}  # fmt: skip
    for (passes, exact), line in refused.items():
        with pytest.raises(ValueError, match=line):
            _ = replace(pair, passes=passes, exact=exact).engines
    FakeCuda(monkeypatch)
    build = partial(EnginePools.build, llama(0, rope_parameters=None), None)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for device, passes, exact in (("cuda", "auto", False), ("cuda", "graphs", True), ("cuda:1", "eager", False)):
            pools = build(torch.device(device), passes, exact)
            assert (pools.graphs is not None and pools.graphs.capturing) == (passes != "eager")
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(True)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    build(CPU, "eager", False)
    assert torch.backends.cuda.cudnn_sdp_enabled()


# ----------------------------------------------------------------------------------------------------- exact passes


def exactly(pair: Pair) -> Pair:
    return replace(pair, passes="padded", exact=True)


def test_every_slot_of_both_lanes_has_the_same_bits_in_half_precision():
    """In bfloat16, over drafters, rules and seeds, greedy and sampled: not the tokens alone."""
    faster, runner = 0, random_pairs(torch.bfloat16)
    for case in islice(cases(104, seed=7), 0, None, 2 if ALL else 26):
        asked, prompt = runner._asked(case)
        (plain, slots, alone), (emitted, others, passes) = (
            decode_exactly(exactly(asked), prompt, one.config) for one in (case.alone, case)
        )
        common = prompt.length + len(emitted) - 1  # a lane may keep accepted tokens after the last emitted one
        assert plain == emitted and torch.equal(slots[..., :common, :], others[..., :common, :]), case
        faster += passes < alone
    assert faster > (len(DRAFTERS) if ALL else 1)


def decode_exactly(pair: Pair, prompt: Any, config: DecodingConfig) -> tuple[list[int], Tensor, int]:
    """Tokens of a lane, keys and values of its target, and its passes."""
    request = pair.request(Lane.of(config, prompt), record=False)
    steps = len(list(models.stream(request))) - 1
    return request.emitted, request.engine.cache.slabs[0].clone(), steps


def test_an_exact_dialogue_reads_its_prompts_anew_and_both_lanes_agree():
    chat = Chat(exactly(random_pairs(torch.bfloat16).pair(3, DRAFTERS[0])))
    for text in ("What is this?", "And that?", "Why?"):
        events = chat.race(text, models.picture(0) if not chat.turns else None, replace(SHORT, max_new_tokens=20))
        assert [event.item.reused_tokens for event in events if isinstance(event.item, Prefill)] == [0, 0]
        assert chat.turns[-1].trace.token_ids == chat.turns[-1].alone.token_ids


def test_drawn_guesses_are_verified_on_the_first_branch_too():
    steps = models.decode(exactly(models.pair("perfect")), models.prompt(0), replace(SHORT, **DRAWN)).steps
    assert all(step.tree.parents == tuple(range(-1, len(step.tree) - 1)) for step in steps)
    assert sum(len(step.verification.accepted) for step in steps) >= sum(step.tree.drafted for step in steps) > 4


def test_where_a_row_depends_on_more_exact_passes_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    model, padded = random_pairs(torch.float64)._make_target(1).target, CudaGraphs(CPU, capture=False)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        EnginePool(model.to(dtype), padded, exact=True)
    call = GraphRunner._call
    bent: dict[str, Callable[[Tensor, StaticInputs], Any]] = {
        "index": lambda rows, shape: rows == EXACT_ROWS - 1,
        "others": lambda rows, shape: shape.positions[-1] != 0,
        "window": lambda rows, shape: shape.window > WINDOW,
    }
    for depends in bent.values():

        def bend(runner: GraphRunner, shape: StaticInputs, *rest: Any, depends: Any = depends) -> None:
            call(runner, shape, *rest)
            runner._logits[: shape.rows] += 1e-3 * depends(torch.arange(shape.rows)[:, None], shape)

        monkeypatch.setattr(GraphRunner, "_call", bend)
        line = "LlavaForConditionalGeneration cannot be decoded with exact passes: a row's bits depend on other rows"
        with pytest.raises(ValueError, match=line):
            _ = Pair("x", model.float(), None, None, "x", "-", passes="padded", exact=True).engines


# --------------------------------------------------------------------------------------------------------- captures


def test_a_capture_calls_the_pass_first_in_its_thread_and_collects_no_garbage(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch)
    graphs, calls = CudaGraphs(GPU, capture=True), list[Any]()
    for name in "ab":
        compute = lambda name=name: calls.append((name, threading.get_ident(), gc.isenabled()))  # noqa: E731
        thread = threading.Thread(target=graphs.capture, args=(compute,))
        thread.start()
        thread.join()
    assert [(name, collects) for name, _, collects in calls] == [("a", True), ("a", False), ("b", True), ("b", False)]
    assert calls[0][1] == calls[1][1] != threading.get_ident() and gc.isenabled()
    assert (graphs.captured, graphs.failure, cuda.replays) == (2, None, 0) and graphs.seconds >= 7200


def captures_of_a_race(pair: Pair, config: DecodingConfig) -> tuple[int, int]:
    """Captures of a race before the first step of each lane, and after; none is on a lane's clock."""
    before, after, first = 0, 0, pair.engines.graphs.captured
    for event in pair.race(Lane.of(config, models.prompt(0)).with_target_only()):
        captures = pair.engines.graphs.captured - first - before - after
        before, after = (before + captures, after) if isinstance(event.item, Prefill) else (before, after + captures)
        assert event.clock < 1800, "a capture was on the clock"
    return before, after


@pytest.mark.parametrize("rule", sample(RULES, 1))
def test_nothing_is_captured_in_the_middle_of_an_answer(rule: str, monkeypatch: pytest.MonkeyPatch):
    """Neither at first sight of a width nor where the text crosses the end of a window."""
    monkeypatch.setattr(cuda_graphs, "WINDOW", 32)
    FakeCuda(monkeypatch)
    for name, exact in (("mixed", False), ("mixed", True), ("eagle3", False)):
        before, after = captures_of_a_race(
            captured(pair_named(name), exact), replace(SHORT, rule=rule, branching=(2, 2, 1), max_new_tokens=40)
        )
        assert before > 5 and after == 0


@pytest.mark.parametrize(("per_row", "nodes"), [(0.0, 60), (0.004, 40), (0.5, 20)])
def test_trees_on_a_gpu_are_as_large_as_passes_stay_cheap(per_row: float, nodes: int, monkeypatch: pytest.MonkeyPatch):
    """By arithmetic: a pass over n rows takes 1 + n x ``per_row`` seconds, and 1.2 times one row's is affordable."""
    FakeCuda(monkeypatch)
    pair, clock, forward = captured(models.pair("mixed")), [0.0], Engine.forward
    vars(pair)["device"] = torch.device("cuda")

    def timed(self: Engine, batch: Batch, reduction: Any = None) -> Any:
        clock[0] += 1 + per_row * len(batch.tokens)
        return forward(self, batch, reduction)

    monkeypatch.setattr(Engine, "forward", timed)
    monkeypatch.setattr("specllava.pair.now", lambda device: clock[0])
    assert pair.warm_up().nodes == nodes and pair.nodes is None


def test_all_that_races_run_is_captured_at_load(monkeypatch: pytest.MonkeyPatch):
    """Lanes do not swap engines, so that each engine has captured what its lane needs."""
    FakeCuda(monkeypatch)
    pair = captured(models.pair("mixed"))
    vars(pair)["device"] = torch.device("cuda")
    pair.warm_up()
    first = pair.engines.graphs.captured
    for _ in range(2):
        gc.collect()  # caches give back their engines
        assert captures_of_a_race(pair, replace(SHORT, max_new_tokens=24)) == (0, 0) and first > 10
        gc.collect()
        widest = sorted(engine.runner.widest for engine in pair.engines.target._free[()])
        assert widest == [1, 61]  # the widest that is tried


@pytest.mark.parametrize(
    ("fault", "exact"),
    [("one capture", False), ("replays", False), ("replays", True), ("captures", True), ("later captures", False)],
)
def test_a_gpu_that_captures_or_replays_wrongly_decodes_as_ever(fault: str, exact: bool, monkeypatch, caplog):
    cuda = FakeCuda(monkeypatch, replaying=fault != "replays")
    cuda.failing = {"captures": 99, "one capture": 1}.get(fault, 0)
    pair = captured(models.pair("mixed"), exact)
    cuda.failing = 1 if fault == "one capture" else 99
    trace = models.decode(pair, models.prompt(0), replace(SHORT, max_new_tokens=12))
    assert trace.token_ids == models.expected(0, 0, 12)
    reason = REFUSAL.splitlines()[0]
    if fault == "one capture":  # which is tried once more
        assert trace.setting.passes == "graphs" and f"not captured as a CUDA graph: {reason}" in caplog.text
        return
    if fault == "later captures":
        assert trace.setting.passes.startswith(f"padded, a capture failed: {reason}")
        return
    assert trace.setting.passes == ("target: padded; draft: eager; exact" if exact else None)
    why = "replayed passes gave other bits than called ones" if fault == "replays" else reason
    assert f"LlavaForConditionalGeneration runs without CUDA graphs: {why}" in caplog.text


# -------------------------------------------------------------------------------------------------- host and device


@pytest.mark.parametrize(("passes", "name"), [("eager", "eagle3"), ("padded", "draft VLM")])
def test_passes_mix_no_tensors_of_host_and_device(passes: PassesName, name: str):
    """On a device that is a mark, where mixing raises; the numbers are real, so the tokens are those of the CPU."""
    pair, short = pair_named(name), DecodingConfig(max_new_tokens=8)
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    if isinstance(draft, FeatureDraft):
        draft.bind(target)
    configs = short, replace(short, drafter="none"), replace(short, temperature=1.0, top_p=0.9), replace(short, **DRAWN)
    here = replace(pair, passes=passes)
    asked = [(config, here.generate(models.picture(0), "What?", config).token_ids) for config in configs]
    with marked_device():
        for model in (target, draft):
            mark_model(model)
        there = replace(pair, target=target, draft=draft, passes=passes)
        for config, expected in asked:
            assert there.generate(models.picture(0), "What?", config).token_ids == expected


