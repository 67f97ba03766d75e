"""A pass that is captured once gives what calling it gives, and asks the host for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.recorder import HostReadError, Recorder
from torch import Tensor

from specllava.runtime.padded_passes import EagerRunner, PassRunner


class Sum:
    """A pass over a buffer: the sum of what it is told to add, and how often it was computed."""

    def __init__(self) -> None:
        self.given, self.found, self.calls = torch.zeros(4), torch.zeros(()), 0

    def compute(self) -> None:
        self.calls += 1
        self.found.copy_(self.given.view(2, 2).t().reshape(4).mul(2).sum())

    def run(self, runner: PassRunner, *numbers: float) -> float:
        self.given.copy_(Tensor(numbers))
        runner.run("sum", self.compute)
        return float(self.found)


@pytest.mark.parametrize("make", [EagerRunner, Recorder])
def test_every_run_reads_what_its_buffers_hold(make: Callable[[], PassRunner]):
    one, runner = Sum(), make()
    assert [one.run(runner, n, 0, 0, 1) for n in range(4)] == [2, 4, 6, 8]
    assert one.calls == (1 if make is Recorder else 4)


def test_the_recorder_replays_what_python_said_the_first_time():
    """As a graph does: so a number of Python's that a pass depends on shows in a test."""
    number, found, recorder = [1], torch.zeros(()), Recorder()
    for number[0] in (1, 2):
        recorder.run("add", lambda: found.fill_(number[0]))
    assert float(found) == 1


BUFFER, PLACES = torch.arange(4.0), torch.tensor([1, 0])
REFUSED: dict[str, Callable[[], object]] = {
    "item": lambda: BUFFER.sum().item(),
    "tolist": lambda: BUFFER.tolist(),
    "truth": lambda: bool((BUFFER > 1).any()),
    "int": lambda: int(BUFFER[0]),
    "numpy": lambda: BUFFER.numpy(),
    "a list": lambda: torch.tensor([1.0, 2.0]),
    "an index of Python numbers": lambda: BUFFER[[0, 1]],
    "an index of truth values": lambda: BUFFER[BUFFER > 1],
    "nonzero": lambda: BUFFER.nonzero(),
}


@pytest.mark.parametrize("asking", REFUSED)
@pytest.mark.parametrize("inference", [False, True])
def test_the_recorder_refuses_what_no_graph_can_do(asking: str, inference: bool):
    with torch.inference_mode(inference), pytest.raises(HostReadError, match="a pass asks the host by"):
        Recorder().run("pass", REFUSED[asking])
    Recorder().run("pass", lambda: BUFFER.index_select(0, PLACES).add_(1))
