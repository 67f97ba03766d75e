"""The emulated device says what a GPU would: passes answer as on a CPU, and planted bugs are found by line."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.amount import sample
from support.checked_runner import checked_graphs
from torch import Tensor

from benchmarks.emulated.copies import HazardError
from benchmarks.emulated.device import EmulatedDevice
from benchmarks.emulated.installed import emulated_device
from benchmarks.gpu_llava import ALONE, LANES, PICTURE, QUESTION
from benchmarks.shared.random_pair import build, feature_draft
from specllava.core.config import DecodingConfig
from specllava.decoding import stream
from specllava.lane import Lane
from specllava.models.drafts.draft_reading import DraftFormat
from specllava.pair import Pair
from specllava.runtime import llama_layer
from specllava.runtime.engine import Engine
from specllava.runtime.padded_engines import PaddedFeatureEngine
from specllava.runtime.padded_passes import PaddedPasses
from specllava.runtime.pass_shapes import Shape
from specllava.runtime.passes import PassInput
from specllava.runtime.slab import Download, SlabLayer, Upload
from specllava.runtime.timing import engine_of

ROOT = Path(__file__).parents[1]
CUDA = torch.device("cuda")
TOKENS = 12


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with torch.inference_mode(), emulated_device() as emulated:
        yield emulated


def line_of(where: Callable[..., object], text: str) -> str:
    """The only line of a function that holds a text, as the device names lines."""
    lines, first = inspect.getsourcelines(where)
    (number,) = [number for number, line in enumerate(lines, start=first) if text in line]
    return f"{Path(inspect.getfile(where)).relative_to(ROOT)}:{number}"


def answer(pair: Pair, lane: str = "top 10, EAGLE-2") -> list[int]:
    request = pair.request(Lane(lane, LANES[lane], pair.prompt(PICTURE, QUESTION, 128)))
    for _ in stream(request):
        if len(request.emitted) >= TOKENS:
            break
    return request.emitted[:TOKENS]


def toy(kind: DraftFormat | None = None) -> Pair:
    pair = build("toy", CUDA, torch.float32)
    return pair if kind is None else feature_draft(pair, kind)


# -------------------------------------------------------------------------------------------- what is right passes


def generated() -> list[int]:
    """The answer of transformers' own loop on the CPU."""
    pair = build("toy", torch.device("cpu"), torch.float32)
    prompt = pair.prompt(PICTURE, QUESTION, 128)
    pixels = pair.processor.image_processor(PICTURE, return_tensors="pt").pixel_values
    found = pair.target.generate(
        input_ids=prompt.input_ids, pixel_values=pixels, attention_mask=torch.ones_like(prompt.input_ids),
        max_new_tokens=TOKENS, do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return found[0, prompt.length :].tolist()


@pytest.mark.parametrize("kind", sample((None, "vispec", "eagle3"), 2))
def test_captured_passes_answer_as_generate_does_on_a_cpu(kind: DraftFormat | None):
    expected = generated()
    with torch.inference_mode(), emulated_device() as device:
        pair = toy(kind)
        assert pair.device == torch.device("cuda:0") and answer(pair) == expected
        graphs = checked_graphs(pair, device)
        assert [answer(graphs, lane) for lane in LANES] == [expected] * len(LANES)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["toy", "toy-eagle"])
def test_a_pair_that_is_moved_there_answers_as_where_it_was_loaded(name: str, temperature: float):
    pair, config = Pair.from_preset(name, device="cpu", dtype="float32"), DecodingConfig(
        rule="topk", temperature=temperature, max_new_tokens=16
    )
    expected = pair.generate(PICTURE, QUESTION, config)
    with emulated_device() as device:
        found = checked_graphs(pair.to("cuda"), device).generate(PICTURE, QUESTION, config)
    assert found.token_ids == expected.token_ids
    assert [step.tree.tokens for step in found.steps] == [step.tree.tokens for step in expected.steps]


def test_torch_is_as_before_afterwards():
    names = [name for name in dir(Tensor) if not name.startswith("__")]
    before = [getattr(Tensor, name) for name in names], dict(vars(torch.cuda)), torch.tensor
    with emulated_device():
        assert torch.zeros(1, device="cuda").is_cuda and torch.cuda.is_available()
        with CUDA:
            assert torch.tensor([1]).is_cuda
    assert before == ([getattr(Tensor, name) for name in names], dict(vars(torch.cuda)), torch.tensor)
    assert not torch.cuda.is_available() and torch.zeros(1).device.type == "cpu"
    with torch.device("meta"):  # as models are made in before their weights are read
        assert torch.tensor([1]).is_meta


def test_memory_is_counted_as_long_as_a_view_of_it_lives(device: EmulatedDevice):
    held = torch.zeros(1000, device=CUDA)
    view = held[3:]
    assert device.allocated == torch.cuda.memory_allocated() == 4000
    del held
    assert device.allocated == 4000 and view.device.type == "cuda"
    del view
    assert device.allocated == 0


def test_a_capture_computes_nothing_and_a_replay_reads_the_same_memory(device: EmulatedDevice):
    given, found = torch.ones(3, device=CUDA), torch.zeros(3, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found += 2 * given
    assert found.tolist() == [0, 0, 0]
    for number in (1, 5):
        given.fill_(number)
        graph.replay()
    assert found.tolist() == [12, 12, 12]


def test_a_download_has_arrived_once_its_event_was_waited_for(device: EmulatedDevice):
    pinned, event = torch.zeros(3, pin_memory=True), torch.cuda.Event()
    seen = pinned.numpy()
    pinned.copy_(torch.ones(3, device=CUDA), non_blocking=True)
    event.record()
    with pytest.raises(HazardError, match="reads pinned memory before"):
        seen.tolist()
    event.synchronize()
    assert seen.tolist() == [1, 1, 1]


def test_waits_are_counted_by_line_and_refused_where_torch_refuses_them(device: EmulatedDevice):
    number = torch.ones(1, device=CUDA)
    assert number.item() == 1.0
    assert list(device.waits.values()) == [1]
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match=r"synchronizing CUDA operation: item at tests/test_emulated_device\.py"):
        number.item()


MIXED: dict[str, Callable[[Tensor], object]] = {
    "a sum": lambda there: there + torch.ones(3),
    "a choice": lambda there: torch.where(there > 0, there, torch.ones(3)),
    "a list": lambda there: torch.cat([there, torch.ones(1)]),
    "an index": lambda there: there.index_select(0, torch.tensor([1])),
    "a target": lambda there: torch.zeros(3).index_copy_(0, torch.tensor([0, 1, 2]), there),
}


@pytest.mark.parametrize("mixing", MIXED)
def test_two_devices_in_one_operation_are_refused(mixing: str, device: EmulatedDevice):
    with pytest.raises(RuntimeError, match=r"same device: .* at tests/test_emulated_device\.py"):
        MIXED[mixing](torch.ones(3, device=CUDA))


# ---------------------------------------------------------------------------------------------- what is wrong is found


def change_ids(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    stage = PaddedPasses.stage

    def changed(*args: object) -> Shape:
        shape = stage(*args)
        return replace(shape, ids=change(shape.ids))

    monkeypatch.setattr(PaddedPasses, "stage", changed)


def test_ids_left_on_the_host_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    change_ids(monkeypatch, Tensor.cpu)
    with pytest.raises(RuntimeError, match=line_of(Engine._through_layers, "embed_tokens(ids)")):
        answer(toy().running("graphs"))


def test_a_mask_left_on_the_host_is_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    mask = PaddedPasses.mask
    monkeypatch.setattr(PaddedPasses, "mask", lambda *a: mask(*a).cpu())
    with pytest.raises(RuntimeError, match=line_of(llama_layer._attend, "seen, _ = attend(")):
        answer(toy().running("graphs"), ALONE)


def test_states_left_on_the_host_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    made = PaddedFeatureEngine.__init__

    def make(engine: PaddedFeatureEngine, *args: object) -> None:
        made(engine, *args)
        engine._target_states = engine._target_states.cpu()

    monkeypatch.setattr(PaddedFeatureEngine, "__init__", make)
    with pytest.raises(RuntimeError, match="same device: cat at specllava/models/drafts/"):
        answer(toy("eagle").running("graphs"))


def test_a_host_read_inside_a_captured_pass_is_found(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    mask = PaddedPasses.mask

    def reading(*args: object) -> Tensor:
        found = mask(*args)
        return found if float(found.max()) == 0.0 else found.zero_()

    monkeypatch.setattr(PaddedPasses, "mask", reading)
    with caplog.at_level(logging.WARNING):
        answer(toy().running("graphs"))
    assert any(f"__float__ at {line_of(reading, 'float(')}" in record.getMessage() for record in caplog.records)


class LeftInPool:
    """Buffer that leaves what is copied to it where it lies."""

    def __getitem__(self, rows: slice) -> LeftInPool:
        self.rows = rows
        return self

    def copy_(self, states: Tensor) -> None:
        self.states = states

    def clone(self) -> Tensor:
        return self.states[self.rows].clone()


def test_states_left_in_the_pool_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    made = PaddedFeatureEngine.__init__

    def make(engine: PaddedFeatureEngine, *args: object) -> None:
        made(engine, *args)
        engine._own = LeftInPool()

    monkeypatch.setattr(PaddedFeatureEngine, "__init__", make)
    with pytest.raises(HazardError, match=line_of(LeftInPool.clone, "self.states[self.rows]")):
        answer(toy("eagle").running("graphs"))


def test_logits_left_in_the_pool_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    run, left = PaddedPasses.run, {}

    def leaving(passes, kind, shape, batch, compute, reduction):
        key = passes, kind, shape.rows, shape.write_slots.window, reduction

        def computing() -> Tensor:
            left[key] = compute()
            return left[key]

        _, numbers = run(passes, kind, shape, batch, computing, reduction)
        return left[key][: len(batch.tokens)], numbers

    monkeypatch.setattr(PaddedPasses, "run", leaving)
    with pytest.raises(HazardError, match=line_of(leaving, "left[key][:")):
        answer(toy().running("graphs"))


def test_a_download_that_nobody_waits_for_is_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    def fetch(download: Download, rows: slice) -> list[list[float]]:
        download._memory[rows].copy_(download.device[rows], non_blocking=True)
        return download._host[rows].tolist()

    monkeypatch.setattr(Download, "fetch", fetch)
    with pytest.raises(HazardError, match=line_of(fetch, ".tolist()")):
        answer(toy().running("graphs"))


def test_an_upload_that_is_overwritten_is_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    pair = toy().running("graphs")
    engine = engine_of(pair.target, 64, pair.engines)
    for _ in range(2):  # the wait is there
        engine.forward(PassInput([1, 2]))
    monkeypatch.setattr(Upload, "wait", lambda upload: None)
    with pytest.raises(HazardError, match=line_of(PaddedPasses.stage, "shape.numbers[:, :count] = (")):
        engine.forward(PassInput([1, 2]))


def test_ids_elsewhere_than_uploaded_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    change_ids(monkeypatch, Tensor.clone)
    with pytest.raises(HazardError, match=line_of(Engine._through_layers, "embed_tokens(ids)")):
        answer(checked_graphs(toy(), device))


def test_slots_baked_in_are_found(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch):
    update = SlabLayer.update

    def baked(layer: SlabLayer, keys: Tensor, values: Tensor, *args: object) -> tuple[Tensor, Tensor]:
        if layer.write_slots is None:
            return update(layer, keys, values)
        end = layer.length + keys.shape[2]
        layer.keys[:, :, layer.length : end] = keys
        layer.values[:, :, layer.length : end] = values
        return layer.keys[:, :, : layer.write_slots.window], layer.values[:, :, : layer.write_slots.window]

    monkeypatch.setattr(SlabLayer, "update", baked)
    with pytest.raises(HazardError, match=line_of(baked, "layer.keys[:, :, layer.length")):
        answer(checked_graphs(toy(), device))
