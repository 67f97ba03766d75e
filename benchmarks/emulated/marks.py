"""Marks on the storage of CPU tensors, which say what an emulated device holds; and the line of code that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
HERE = str(Path(__file__).parent)
plain_storage: Callable[[Tensor], torch.UntypedStorage] = Tensor.untyped_storage


def storage_of(tensor: Tensor) -> Any:
    """Return the storage that views of a tensor share; inside ``vmap`` that of the batch."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return plain_storage(tensor)


def on_device(tensor: object) -> bool:
    """Return whether the emulated device holds a tensor."""
    return isinstance(tensor, Tensor) and getattr(storage_of(tensor), "emulated", False)


def is_pinned(tensor: Tensor) -> bool:
    return getattr(storage_of(tensor), "emulated_pinned", False)


def tape_of(tensor: Tensor) -> object | None:
    """Return the tape of the capture that allocated a tensor in the memory of its graph, if one did."""
    tape: object | None = getattr(storage_of(tensor), "emulated_tape", None)
    return tape


def line() -> str:
    """Return the line of this checkout that is running, the emulation left out."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT)) and not name.startswith(HERE) and "site-packages" not in name:
            return f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside of the checkout"
