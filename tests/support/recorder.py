"""A CUDA graph's behaviour on a CPU: a pass is recorded operation by operation, and replayed on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# What waits for the device, or copies from memory of the host that is not pinned, by its name among torch's operations.
HOST_OPERATIONS = {
    "aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::lift_fresh", "aten::nonzero",
    "aten::masked_select",
}  # fmt: skip
BY_INDEX = {"aten::index", "aten::index_put", "aten::index_put_"}
# Methods that read a CPU tensor's memory without any operation.
HOST_METHODS = ("tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "cpu")


class HostReadError(Exception):
    """A pass asked the host for something, which no graph could."""


@contextmanager
def host_reads(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of every wait of the host: by operations of torch, and by methods that read memory."""
    with pytest.MonkeyPatch.context() as patched, _Operations(tell):
        inside = False
        for name in HOST_METHODS:
            plain = getattr(Tensor, name)

            def read(tensor: Tensor, *args: Any, plain: Any = plain, name: str = name, **kwargs: Any) -> Any:
                nonlocal inside
                if inside:  # one method that reads by another is one read
                    return plain(tensor, *args, **kwargs)
                inside = True
                try:
                    tell(name)
                    with torch.utils._python_dispatch._disable_current_modes():
                        return plain(tensor, *args, **kwargs)
                finally:
                    inside = False

            patched.setattr(Tensor, name, read)
        yield


class _Operations(TorchDispatchMode):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in HOST_OPERATIONS:
            self._tell(name)
        if name in BY_INDEX and any(one.dtype == torch.bool for one in args[1] if one is not None):
            self._tell(f"{name} of truth values")
        return func(*args, **kwargs or {})


class _Tape(TorchDispatchMode):
    """Operations in their order, with the very tensors that they read and made."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        writes = any(part.alias_info is not None and part.alias_info.is_write for part in func._schema.arguments)
        if writes or not _shares(out, (args, kwargs)):  # a view needs no work
            self.operations.append((func, args, kwargs or {}, None if writes else out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.operations:
            new = func(*args, **kwargs)
            if out is not None:
                for held, made in zip(tree_leaves(out), tree_leaves(new), strict=True):
                    if isinstance(held, Tensor):
                        held.copy_(made)


def _shares(out: Any, given: Any) -> bool:
    """Whether what an operation returned lies in the memory of what it was given."""
    held = set()
    tree_map_only(Tensor, lambda one: held.add(one.untyped_storage().data_ptr()), given)
    return any(isinstance(one, Tensor) and one.untyped_storage().data_ptr() in held for one in tree_leaves(out))


class Recorder:
    """Runner of passes that records each once; host reads and tensors made of Python numbers are refused in a pass."""

    def __init__(self) -> None:
        self.replayed = 0
        self._tapes: dict[Hashable, _Tape] = {}

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        if key in self._tapes:
            self.replayed += 1
            self._tapes[key].replay()
            return
        tape = _Tape()
        with host_reads(_refuse), tape:
            compute()
        self._tapes[key] = tape


def _refuse(what: str) -> None:
    raise HostReadError(f"a pass asks the host by {what}")
