"""A device that is full costs one run: it is said, what the run held is freed, and the next one is as ever."""

from __future__ import annotations

import contextlib
import gc
import json
import weakref
from collections.abc import Iterator

import pytest
import torch
from support import models
from support.chats import QUESTIONS, SHORT
from test_runs import ME, Kind, ask, said

from specllava.chat import Chat
from specllava.cli import main as command_line
from specllava.files import is_out_of_memory
from visual.page.run_requests import RunRequests
from visual.page.runs import run_updates

TORCH_CPU = (
    "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)
FULL = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(TORCH_CPU),
    MemoryError(),
)
OTHERS = (RuntimeError("shape mismatch"), ValueError("can't allocate memory"), OSError("No space left on device"))


@pytest.mark.parametrize("error", FULL)
def test_full_devices_are_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_are_not_taken_for_one(error: Exception) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", FULL)
def test_the_page_says_so_and_the_next_run_runs(error: Exception) -> None:
    failing = [error]

    def full(count: int) -> None:
        if count == 3 and failing:
            raise failing.pop()

    requests, kind = RunRequests(), Kind(full)
    requests.request(ME, ask())
    *_, last = run_updates(requests, kind.kind, ME)
    assert json.loads(last[1])["word"] == "Failed", "it may well be possible"
    assert said(last).startswith("This machine ran out of memory") and requests.latest(ME) is None
    requests.request(ME, ask())
    after = run_updates(requests, kind.kind, ME)
    assert [next(after) for _ in range(5)][-1][0] is not None
    after.close()


@pytest.fixture
def filling() -> Iterator[list[int]]:
    """Passes of the target until its device is full, once."""
    left = [10**9]
    target = models.pair("mixed").target

    def hook(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    handle = target.get_decoder().layers[0].register_forward_pre_hook(hook)
    yield left
    handle.remove()


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_chat_goes_on_behind_a_turn_for_which_memory_did_not_suffice(filling: list[int], passes: int) -> None:
    pair = models.pair("mixed")
    wanted = [Chat(pair).ask(QUESTIONS[0], models.picture(0), SHORT).token_ids]
    chat = Chat(pair)
    filling[0] = passes
    with pytest.raises(torch.OutOfMemoryError):
        chat.ask(QUESTIONS[0], models.picture(0), SHORT)
    assert chat.messages == [] and chat._caches.nbytes == 0
    assert [chat.ask(QUESTIONS[0], models.picture(0), SHORT).token_ids] == wanted


def test_what_a_failed_run_held_is_freed(filling: list[int]) -> None:
    chat = Chat(models.pair("mixed"))
    chat.ask(QUESTIONS[0], models.picture(0), SHORT)
    held = [weakref.ref(engine) for engine in chat._caches._engines.values()]
    filling[0] = 2
    with contextlib.suppress(torch.OutOfMemoryError):
        chat.ask(QUESTIONS[1], None, SHORT)
    gc.collect()
    assert held and [one() for one in held] == [None] * len(held)


def test_the_command_line_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Filling:
        def run(self, console: object) -> None:
            raise FULL[0]

    monkeypatch.setattr(command_line, "_parse", lambda *_: Filling())
    assert command_line.main([]) == 1
    line = capsys.readouterr().err
    assert "out of memory: CUDA out of memory" in line and "--max-new-tokens" in line and line.count("\n") == 1
