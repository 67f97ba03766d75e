"""Captures of passes: loud where they fail, outside every clock, and before the answer that needs them."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import models
from support.amount import sample
from support.recorder import Recorder

from specllava.core.config import RULES, DecodingConfig
from specllava.core.trace import Prefill
from specllava.decoding import race
from specllava.lane import lane_of, race_lanes
from specllava.pair import Pair
from specllava.runtime.graphs import GraphMemory, GraphRunner
from specllava.runtime.kv_caches import EnginePool, KVCaches, build_engine_pool
from specllava.runtime.padded_engines import PaddedEngine
from specllava.runtime.padded_passes import PassRunner

GPU = torch.device("cuda")
REFUSAL = "operation not permitted when stream is capturing\nmore of it"


class Device:
    """Stands in for torch.cuda: what is captured computes nothing until it is replayed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails, self.why = 0, REFUSAL  # captures to come that fail
        self.replays = self.pools = 0
        self.log: list[Any] = []
        cuda = {
            "graph_pool_handle": self.new_pool, "Stream": lambda device: "capturing", "CUDAGraph": lambda: self,
            "graph": self.graph, "current_stream": lambda device: "before", "synchronize": lambda device: None,
            "set_stream": lambda stream: self.log.append(("stream", stream)), "current_device": lambda: 0,
        }  # fmt: skip
        for name, one in cuda.items():
            patch.setattr(torch.cuda, name, one)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, lambda *of, name=name: self.log.append((name, *of)), raising=False)

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def graph(self, graph: Any, pool: int, stream: str, capture_error_mode: str) -> Any:
        assert (stream, capture_error_mode) == ("capturing", "thread_local")
        self.log.append(("capture", pool))
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError(self.why)

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_pass_is_captured_when_it_first_comes_and_replayed_from_then_on(device: Device):
    memory, called = GraphMemory(GPU), list[str]()
    runner = GraphRunner(memory)
    for _ in range(4):
        runner.run("a", lambda: called.append("a"))
    assert (called, device.replays, memory.captured) == (["a", "a"], 4, 1)  # called once, then recorded
    runner.run("b", lambda: called.append("b"))
    assert (called[2:], device.replays, memory.captured) == (["b", "b"], 5, 2)
    assert memory.failure is None and memory.seconds > 0


def test_a_capture_that_fails_is_told_leaves_its_memory_and_is_tried_once_more(
    device: Device, caplog: pytest.LogCaptureFixture
):
    memory = GraphMemory(GPU)
    device.fails = 1
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            GraphRunner(memory).run("a", lambda: None)
    left = [("stream", "before"), ("_cuda_endAllocateToPool", 0, 1), ("_cuda_releasePool", 0, 1)]
    assert device.log == [("capture", 1), *left, ("capture", 2), ("capture", 2), ("capture", 2)]
    assert (memory.captured, memory.failure) == (3, None)
    assert [record.getMessage() for record in caplog.records] == [
        "a pass was not captured as a CUDA graph: operation not permitted when stream is capturing"
    ]


def test_where_captures_fail_twice_passes_are_called_and_the_reason_stays(
    device: Device, caplog: pytest.LogCaptureFixture
):
    memory, called = GraphMemory(GPU), list[str]()
    GraphRunner(memory).run("a", lambda: None)
    device.fails, device.why = 99, "operation not permitted " + 99 * "x" + 99 * "y" + "\nmore"
    runners = [GraphRunner(memory) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for runner in runners:
            for name in "bbc":
                runner.run(name, lambda name=name: called.append(name))
    assert called.count("c") == 2 and called.count("b") == 4 + 4  # each capture that was tried called it twice
    assert (memory.captured, memory.failure) == (1, device.why[:160])
    assert len(caplog.records) == 3 and "which is slower" in caplog.text


def test_no_garbage_is_collected_inside_a_capture(device: Device):
    inside = list[bool]()
    GraphRunner(GraphMemory(GPU)).run("a", lambda: inside.append(gc.isenabled()))
    assert inside == [True, False] and gc.isenabled()


def test_a_pass_is_called_in_the_thread_that_captures_it(device: Device):
    """A library's first call in a thread cannot be captured."""
    runner, threads = GraphRunner(GraphMemory(GPU)), list[int]()

    def work(name: str) -> None:
        runner.run(name, lambda: threads.append(threading.get_ident()))

    for number in range(6):
        one = threading.Thread(target=work, args=(f"{number // 2}",))
        one.start()
        one.join()
    assert len(threads) == 6 and threads[::2] == threads[1::2]


# ------------------------------------------------------------------------------------------------- whole answers


class Tapes(GraphMemory):
    """Records passes operation by operation, as graphs do; each capture takes an hour."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captured, self.seconds, self.failure, self.clock = 0, 0.0, None, 0.0
        patch.setattr("specllava.decoding.now", lambda device: self.clock)
        patch.setattr("specllava.decoding.now_read", lambda: self.clock)

    def capture(self, compute: Callable[[], None]) -> Any:
        self.captured += 1
        self.seconds += 3600.0
        self.clock += 3600.0
        recorder = Recorder()
        recorder.run("pass", compute)
        replay = lambda: recorder.run("pass", compute)  # noqa: E731
        return type("Tape", (), {"replay": staticmethod(replay)})

    def pool(self, exact: bool = False) -> EnginePool:
        return EnginePool(lambda: GraphRunner(self), exact, self)


def pair_on(tapes: Tapes, exact: bool = False) -> Pair:
    pair = replace(models.pair("mixed"))
    vars(pair)["engines"] = tapes.pool(exact)
    return pair


def captures_of_a_race(pair: Pair, tapes: Tapes, config: DecodingConfig) -> tuple[int, int]:
    """Captures before the first step of each lane, and after."""
    before = after = 0
    for event in race([pair.request(lane) for lane in race_lanes(lane_of(config, models.prompt(0)))]):
        if isinstance(event.item, Prefill):
            before += tapes.captured - before - after
        else:
            after = tapes.captured - before
        assert event.clock < 60, "a capture was on the clock"
    return before, after


@pytest.mark.parametrize("rule", sample(RULES, 2))
def test_nothing_is_captured_in_the_middle_of_an_answer(rule: str, monkeypatch: pytest.MonkeyPatch):
    """Neither at first sight of a width nor where the text crosses the end of a window."""
    monkeypatch.setattr("specllava.runtime.padded_passes.COLUMNS", 32)
    tapes = Tapes(monkeypatch)
    config = DecodingConfig(rule=rule, depth=4, nodes=9, width=3, branching=(2, 2, 1), max_new_tokens=40)
    for exact in (False, True):
        pair, counted = pair_on(tapes, exact), tapes.captured
        before, after = captures_of_a_race(pair, tapes, config)
        assert before - counted > 5 and after == 0


def test_lanes_of_later_races_capture_nothing(monkeypatch: pytest.MonkeyPatch):
    """They do not swap engines, so that each engine has captured what its lane needs."""
    tapes = Tapes(monkeypatch)
    pair = pair_on(tapes)
    config = DecodingConfig(depth=4, nodes=9, max_new_tokens=12)
    pair.warm_up()
    gc.collect()  # caches give back what they held
    first = tapes.captured
    widest = []
    for _ in range(4):
        assert captures_of_a_race(pair, tapes, config)[1] == 0
        gc.collect()
        widest.append([one.passes.widest for one in pair.engines._free[id(pair.target)]])
    assert tapes.captured == first and all(sorted(each) == [1, 32] for each in widest)


def test_warming_up_captures_at_load_what_the_first_race_runs(monkeypatch: pytest.MonkeyPatch):
    tapes = Tapes(monkeypatch)
    pair = pair_on(tapes)
    pair.warm_up()
    captured = tapes.captured
    captures_of_a_race(pair, tapes, DecodingConfig(max_new_tokens=24))
    assert tapes.captured == captured > 10


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_a_trace_says_how_passes_ran(drafter: str, monkeypatch: pytest.MonkeyPatch):
    tapes = Tapes(monkeypatch)
    config = DecodingConfig(drafter=drafter, max_new_tokens=6)
    lane = lane_of(config, models.prompt(0))
    told = [pair.run(lane).setting.passes for pair in (models.pair("mixed"), pair_on(tapes))]
    tapes.failure = "out of memory"
    told.append(pair_on(tapes, exact=True).info.passes)
    assert told == [None, "graphs", "padded; exact"]
    pair = pair_on(Tapes(monkeypatch))
    _ = pair.info
    pair.engines.graphs.failure = "out of memory"
    assert pair.info.passes == "padded, a capture failed: out of memory"


# ---------------------------------------------------------------------------------------------- who captures


class Wrong:
    """A runner whose replays compute nothing."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def run(self, key: Any, compute: Callable[[], None]) -> None:
        if key not in self._seen:
            compute()
        self._seen.add(key)


def test_graphs_are_a_gpus_default_where_replaying_computes_the_same(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    try:
        assert [build_engine_pool(GPU, way, exact=False).graphs is None for way in ("auto", "graphs", "eager")] == [
            False, False, True,
        ]  # fmt: skip
        assert build_engine_pool(GPU, "auto", exact=True).graphs is not None
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    tapes = Tapes(monkeypatch)
    for runner, told in ((lambda: GraphRunner(tapes), "graphs"), (Wrong, "eager")):
        pool = EnginePool(runner, graphs=tapes)
        pool.check(models.target(0), models.draft("mixed"))
        assert pool.way(models.target(0)) == pool.way(models.draft("mixed")) == told
        assert isinstance(KVCaches(pool).engine(models.target(0), 64), PaddedEngine) == (told == "graphs")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"{name} runs without CUDA graphs: replayed passes gave other bits than called ones"
        for name in ("LlavaForConditionalGeneration", "DraftLlava")
    ]


def test_a_gpu_that_captures_nothing_decodes_as_ever(device: Device, caplog: pytest.LogCaptureFixture):
    device.fails = 99
    memory = GraphMemory(GPU)
    make: Callable[[], PassRunner] = lambda: GraphRunner(memory)  # noqa: E731
    pair = replace(models.pair("mixed"))
    vars(pair)["engines"] = EnginePool(make, graphs=memory)
    said = pair.run(lane_of(DecodingConfig(max_new_tokens=12), models.prompt(0)))
    assert said.token_ids == models.expected(0, 0, 12) and said.setting.passes is None
    assert "runs without CUDA graphs: operation not permitted" in caplog.text
