"""The emulated device in torch's place: what its users call is replaced, for as long as a context lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.emulated.device import CPU, CUDA, EmulatedDevice, Operations
from benchmarks.emulated.marks import is_pinned, line, on_device
from benchmarks.emulated.pinned_view import PinnedView
from benchmarks.emulated.tape import Tape

NAME: Final = "emulated device"
MEMORY: Final = 140 * 10**9
HOST_METHODS: Final = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "__array__")


@contextmanager
def emulated_device() -> Iterator[EmulatedDevice]:
    """Emulate a CUDA device on a CPU; tensors that were made before stay the host's.

    transformers must be imported already: it asks at its import whether there is a GPU.
    """
    device = EmulatedDevice()
    torch.utils._device._device_constructors()  # kept by torch once asked: of its own functions, not of those below
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_dispatching(thread: threading.Thread) -> None:  # a dispatch mode is of one thread
        with Operations(device):
            begin(thread)

    with ExitStack() as installed:
        installed.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
        for name, one in _tensor_methods(device).items():
            installed.enter_context(patch.object(Tensor, name, one))
        for name in ("tensor", "as_tensor"):
            installed.enter_context(patch.object(torch, name, _made_by(device, getattr(torch, name))))
        for name, one in _functions(device).items():
            installed.enter_context(patch.object(torch.cuda, name, one))
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):  # of a capture that failed
            installed.enter_context(patch.object(torch._C, name, lambda *_: None, create=True))
        installed.enter_context(patch.object(threading.Thread, "_bootstrap_inner", begin_dispatching))
        installed.enter_context(Operations(device))
        yield device


def _functions(device: EmulatedDevice) -> dict[str, Any]:
    """Return what stands for functions and classes of ``torch.cuda``."""
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "get_device_name": NAME,
        "get_device_properties": SimpleNamespace(name=NAME, total_memory=MEMORY, major=9, minor=0),
        "get_device_capability": (9, 0), "graph_pool_handle": (0, 1), "mem_get_info": (MEMORY, MEMORY),
        "current_stream": SimpleNamespace(query=lambda: device.done == device.given), "Stream": SimpleNamespace(),
        **dict.fromkeys(("_lazy_init", "empty_cache", "reset_peak_memory_stats", "set_stream", "manual_seed_all")),
    }  # fmt: skip

    class Event:
        """Mark in the order of the device's work."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._copies = self._given = 0

        def record(self, stream: object = None) -> None:
            self._copies, self._given = device.copies.begun, device.given

        def synchronize(self) -> None:
            if device.capturing:
                raise RuntimeError(f"operation not permitted when stream is capturing: an event at {line()}")
            with _disable_current_modes():
                device.copies.finish(self._copies)
            device.done = max(device.done, self._given)

    def refuse_waits(mode: str | int) -> None:
        device.refuses_waits = mode == "error"

    @contextmanager
    def graph(captured: Graph, *_: Any, **__: Any) -> Iterator[None]:
        with device.capture(captured.tape):
            yield

    return {name: lambda *_, answer=answer, **__: answer for name, answer in answers.items()} | {
        "Event": Event, "CUDAGraph": lambda *_: Graph(device), "graph": graph,
        "synchronize": lambda *_: device.wait("synchronize"), "set_sync_debug_mode": refuse_waits,
        "memory_allocated": lambda *_: device.allocated, "max_memory_allocated": lambda *_: device.allocated,
    }  # fmt: skip


class Graph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.tape, self._device = Tape(), device

    def replay(self) -> None:
        self._device.given += 1
        with _disable_current_modes():
            self.tape.replay()

    def reset(self) -> None:
        self.tape.operations.clear()


def _tensor_methods(device: EmulatedDevice) -> dict[str, Any]:
    """Return what stands for methods of tensors that never reach a dispatch, or name a device."""
    plain_device, new = Tensor.device, Tensor.new_tensor
    move = _mover(device, Tensor.to)

    def new_tensor(tensor: Tensor, data: Any, device: Any = None, **options: Any) -> Tensor:
        return move(new(tensor, data, device="cpu", **options), device or tensor.device)

    readers = {name: _reader(device, name, getattr(Tensor, name)) for name in HOST_METHODS}
    return readers | {
        "device": property(lambda tensor: CUDA if on_device(tensor) else plain_device.__get__(tensor)),
        "is_cuda": property(on_device),
        "to": move, "cpu": lambda tensor: move(tensor, CPU), "cuda": lambda tensor, *_: move(tensor, CUDA),
        "new_tensor": new_tensor,
    }  # fmt: skip


def _mover(device: EmulatedDevice, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what stands for ``Tensor.to``."""

    def move(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = args[0].device, args[0].dtype, *args[1:]
        place, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        dtype = dtype or tensor.dtype
        if place is not None and place.type == "meta":
            return plain(tensor, place, dtype)
        there = on_device(tensor) if place is None else place.type == "cuda"
        if there == on_device(tensor):
            return plain(tensor, dtype=dtype, copy=copy)
        if not (there and non_blocking and is_pinned(tensor)):
            device.wait("copy to the device" if there else "copy to the host")
        device.check_use([tensor])
        with _disable_current_modes():
            moved = plain(tensor, dtype=dtype, copy=True)
        return device.hold(moved) if there else moved

    return move


def _reader(device: EmulatedDevice, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for a method by which the host reads a tensor."""

    def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if on_device(tensor):
            if name in ("numpy", "__array__"):
                raise TypeError(f"can't convert cuda:0 device type tensor to numpy, at {line()}")
            device.check_use([tensor])
            device.wait(name)
        with _disable_current_modes():
            found = plain(tensor, *args, **kwargs)
        if name == "numpy" and is_pinned(tensor):
            found = found.view(PinnedView)
            found.copies = device.copies
        return found

    return read


def _made_by(device: EmulatedDevice, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what stands for a function that makes a tensor of Python's numbers, which are on the host first."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        context = torch.empty(0).device
        place = device or (data.device if isinstance(data, Tensor) and context == CPU else context)
        host = make(data, *args, **kwargs) if isinstance(data, Tensor) else make(data, *args, device="cpu", **kwargs)
        return host.to(torch.device(place))

    return made
