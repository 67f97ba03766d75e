"""A device that is only a mark: tensors "on" it are CPU tensors with a marked storage, so all numbers are real.

Within :func:`marked_device` an operation that mixes marked and unmarked tensors raises, as CUDA's do. What CUDA allows
is allowed: numbers (tensors without dimensions), copies, and indices from the host. Nothing else is emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MARK: Final = torch.device("xla:0")  # a type that torch needs no backend for to name
CPU: Final = torch.device("cpu")
COPIES: Final = frozenset({"copy_", "_to_copy", "lift_fresh", "detach", "alias"})
INDEXED: Final = frozenset({"index", "index_put", "index_put_"})

_storage, _to = Tensor.untyped_storage, Tensor.to


def is_marked(tensor: Tensor) -> bool:
    """Return whether a tensor lies on the marked device."""
    return getattr(_storage(tensor), "marked", False)


def mark(tensor: Tensor) -> Tensor:
    """Put a tensor's storage on the marked device, with everything that shares it."""
    _storage(tensor).marked = True
    return tensor


def mark_model(model: nn.Module) -> None:
    """Put the weights and buffers of a model on the marked device, in place."""
    for tensor in (*model.parameters(), *model.buffers()):
        mark(tensor)


class _Marks(TorchDispatchMode):
    """Mode that marks what device operations return, and refuses to mix."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        marked = [tensor for tensor in given if is_marked(tensor)]
        host = [tensor for tensor in given if not is_marked(tensor) and tensor.dim()]
        if marked and host and name not in COPIES and not (name in INDEXED and is_marked(args[0])):
            raise AssertionError(f"aten::{name} mixes device and host tensors")
        asked = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
        before = {id(_storage(tensor)) for tensor in given}
        out = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        if asked[-1].type == MARK.type if asked else bool(marked):
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor) and id(_storage(tensor)) not in before:
                    mark(tensor)
        return out


def _plain(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) and value.type == MARK.type else value


def _moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to``: a copy where the device changes, and no more than a change of dtype where it does not."""
    if args and isinstance(args[0], Tensor):
        args = (MARK if is_marked(args[0]) else CPU, args[0].dtype)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **{key: kwargs[key] for key in kwargs if key != "copy"})
    there = is_marked(tensor) if device is None else device.type == MARK.type
    crosses = there != is_marked(tensor)
    with torch.utils._python_dispatch._disable_current_modes():
        out = _to(tensor, dtype=dtype or tensor.dtype, copy=crosses or bool(kwargs.get("copy")))
    return mark(out) if there else out


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.tensor`` and ``torch.as_tensor``, which build on the host and then move."""

    def build(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        goal = torch.device(device) if device is not None else data.device if isinstance(data, Tensor) else CPU
        return _moved(make(data, *args, **kwargs), goal)

    return build


def _refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if is_marked(tensor):
        raise AssertionError("a device tensor was converted to numpy")
    return _numpy(tensor, *args, **kwargs)


_numpy, _new, _device = Tensor.numpy, Tensor.new_tensor, Tensor.device


@contextmanager
def marked_device() -> Iterator[torch.device]:
    """Let tensors be made on the marked device meanwhile; it is returned."""
    with pytest.MonkeyPatch.context() as patch, _Marks():
        patch.setattr(Tensor, "device", property(lambda one: MARK if is_marked(one) else _device.__get__(one)))
        patch.setattr(Tensor, "to", _moved)
        patch.setattr(Tensor, "cpu", lambda one: _moved(one, CPU))
        patch.setattr(Tensor, "numpy", _refuse)
        patch.setattr(Tensor, "new_tensor", lambda one, data, **how: _moved(_new(one, data, **how), one.device))
        for name in ("tensor", "as_tensor"):
            patch.setattr(torch, name, _made(getattr(torch, name)))
        yield MARK
