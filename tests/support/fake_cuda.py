"""CUDA graphs on a CPU: a capture records a pass operation by operation, a replay runs it again on the same memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from specllava.engine.cuda_graphs import CudaGraphs
from specllava.engine.pool import EnginePool, EnginePools
from specllava.pair import Pair

# What waits for the device, or copies from memory of the host that is not pinned, by its name among torch's operations.
HOST_OPERATIONS = {
    "aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::lift_fresh", "aten::nonzero",
    "aten::masked_select",
}  # fmt: skip
BY_INDEX = {"aten::index", "aten::index_put", "aten::index_put_"}
# Methods that read a CPU tensor's memory without any operation.
HOST_METHODS = ("tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "cpu")
REFUSAL = "operation not permitted when stream is capturing\nmore of it"


class HostReadError(Exception):
    """A pass asked the host for something, which no graph could."""


@contextmanager
def host_reads(report: Callable[[str], None]) -> Iterator[None]:
    """Report every wait of the host: by operations of torch, and by methods that read memory."""
    with pytest.MonkeyPatch.context() as patched, _Operations(report):
        inside = False
        for name in HOST_METHODS:
            plain = getattr(Tensor, name)

            def read(tensor: Tensor, *args: Any, plain: Any = plain, name: str = name, **kwargs: Any) -> Any:
                nonlocal inside
                if inside:  # one method that reads by another is one read
                    return plain(tensor, *args, **kwargs)
                inside = True
                try:
                    report(name)
                    with torch.utils._python_dispatch._disable_current_modes():
                        return plain(tensor, *args, **kwargs)
                finally:
                    inside = False

            patched.setattr(Tensor, name, read)
        yield


class _Operations(TorchDispatchMode):
    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in HOST_OPERATIONS:
            self._report(name)
        if name in BY_INDEX and any(one.dtype == torch.bool for one in args[1] if one is not None):
            self._report(f"{name} of truth values")
        return func(*args, **kwargs or {})


class Tape(TorchDispatchMode):
    """Operations in their order, with the very tensors that they read and made: what a CUDA graph is to a GPU."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        writes = any(part.alias_info is not None and part.alias_info.is_write for part in func._schema.arguments)
        if writes or not _shares(out, (args, kwargs)):  # a view needs no work
            self._operations.append((func, args, kwargs or {}, None if writes else out))
        return out

    def replay(self) -> None:
        self._cuda.replays += 1
        for func, args, kwargs, out in self._operations if self._cuda.replaying else ():
            new = func(*args, **kwargs)
            if out is not None:
                for kept, made in zip(tree_leaves(out), tree_leaves(new), strict=True):
                    if isinstance(kept, Tensor):
                        kept.copy_(made)


def _shares(out: Any, given: Any) -> bool:
    """Whether what an operation returned lies in the memory of what it was given."""
    known = set()
    tree_map_only(Tensor, lambda one: known.add(one.untyped_storage().data_ptr()), given)
    return any(isinstance(one, Tensor) and one.untyped_storage().data_ptr() in known for one in tree_leaves(out))


class FakeCuda:
    """Stand-in for what captures use of ``torch.cuda``; each capture takes an hour.

    Args:
        replaying: without it replays compute nothing.
    """

    def __init__(self, patch: pytest.MonkeyPatch, replaying: bool = True) -> None:
        self.replaying, self.failing = replaying, 0  # ``failing``: captures to come that fail
        self.replays = self.pools = self.seconds = 0
        cuda = {
            "graph_pool_handle": self._new_pool, "Stream": lambda device: "capturing", "CUDAGraph": lambda: Tape(self),
            "graph": self._capture, "current_stream": lambda device: "before", "synchronize": lambda device: None,
            "set_stream": lambda stream: None, "current_device": lambda: 0,
        }  # fmt: skip
        for name, one in cuda.items():
            patch.setattr(torch.cuda, name, one)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            patch.setattr(torch._C, name, lambda *of: None, raising=False)
        plain = time.perf_counter
        patch.setattr(time, "perf_counter", lambda: plain() + self.seconds)

    def _new_pool(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def _capture(self, tape: Tape, pool: int, stream: str, capture_error_mode: str) -> Iterator[None]:
        assert (stream, capture_error_mode) == ("capturing", "thread_local")
        self.seconds += 3600
        with host_reads(_refuse), tape:
            yield
        if self.failing:
            self.failing -= 1
            raise RuntimeError(REFUSAL)


def _refuse(what: str) -> None:
    raise HostReadError(f"a pass asks the host by {what}")


def captured(pair: Pair, exact: bool = False) -> Pair:
    """The same models over captured passes, where :class:`FakeCuda` is there."""
    pair, graphs = replace(pair, exact=exact), CudaGraphs(torch.device("cpu"), capture=True)
    pool = EnginePool(pair.target, graphs, exact)
    vars(pair)["engines"] = EnginePools(pool, None, graphs).with_draft(pair.draft)
    return pair
