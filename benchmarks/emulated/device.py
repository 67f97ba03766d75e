"""An emulated CUDA device: CPU tensors on marked storage, so that placement and captures are checked without a GPU.

It raises what CUDA raises: tensors of two devices in one operation, a wait of the host inside a capture. Captures
compute nothing and are replayed on the same memory. Copies to pinned memory end when they are waited for. Not
emulated are kernels, streams, the allocator, libraries, and so time and rounding.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.emulated.copies import Copies, Copy, HazardError
from benchmarks.emulated.marks import is_pinned, line, on_device, storage_of, tape_of
from benchmarks.emulated.tape import Operation, Tape

CUDA: Final = torch.device("cuda:0")
CPU: Final = torch.device("cpu")
# Operations whose result the host has to know.
READS: Final = frozenset({
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique_consecutive", "_unique2",
    "bincount",
})  # fmt: skip
CROSSING: Final = frozenset({"copy_", "_to_copy", "to", "lift_fresh", "lift", "set_", "detach", "alias"})
BY_INDEX: Final = frozenset({"index", "index_put", "index_put_"})


class EmulatedDevice:
    """State of the device: what is captured, which copies are under way, what the host waited for.

    Args:
        waits: how often the host waited, by what for and the line.
        allocated: bytes that tensors on the device hold.
        refuses_waits: as ``torch.cuda.set_sync_debug_mode("error")``.
        given, done: operations and replays that there were, and those that the host knows to be over.
    """

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.allocated = 0
        self.refuses_waits = False
        self.given = self.done = 0
        self.copies = Copies()
        self._tape: Tape | None = None

    @property
    def capturing(self) -> bool:
        return self._tape is not None

    def wait(self, what: str) -> None:
        """Let the host wait for all work, as CUDA does for an operation that needs its result.

        Raises:
            RuntimeError: inside a capture, or while waits are refused.
        """
        if self.capturing:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} at {line()}")
        if self.refuses_waits:
            raise RuntimeError(f"called a synchronizing CUDA operation: {what} at {line()}")
        self.waits[what, line()] += 1
        self.done = self.given
        with _disable_current_modes():
            self.copies.finish()

    @contextmanager
    def capture(self, tape: Tape) -> Iterator[None]:
        """Record operations to a tape; what they write is taken back."""
        if self.capturing:
            raise RuntimeError("a capture is under way already")
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None
            with _disable_current_modes():
                tape.undo()

    def record(self, compute: Callable[[], None]) -> Tape:
        """Return the tape of a pass, which computes nothing."""
        tape = Tape()
        with self.capture(tape):
            compute()
        return tape

    def hold(self, tensor: Tensor) -> Tensor:
        """Mark a new tensor as one of the device."""
        storage = storage_of(tensor)
        if not getattr(storage, "emulated", False):
            storage.emulated, storage.emulated_tape = True, self._tape
            self.allocated += storage.nbytes()
            weakref.finalize(storage, self._free, storage.nbytes()).atexit = False
        return tensor

    def check_use(self, tensors: Sequence[Tensor]) -> None:
        """Refuse to read memory of a graph outside of its pass, where another pass may have written.

        Raises:
            HazardError: one lies there.
        """
        for tensor in tensors:
            tape = tape_of(tensor)
            if tape is not None and tape is not self._tape:
                raise HazardError(f"{line()} uses memory of a captured pass after it: {tuple(tensor.shape)}")

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation of torch."""
        name = func._schema.name.removeprefix("aten::")
        leaves = tree_leaves((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._check_places(name, args, given)
        if name == "copy_" and on_device(args[0]) != on_device(args[1]):
            return self._cross(*args, **kwargs)
        pinned = kwargs.pop("pin_memory", None)
        asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        there = any(device.type == "cuda" for device in asked)
        if not asked or name in ("to", "_to_copy"):  # torch fills in the device that it believes in
            there = there or any(map(on_device, given))
        if asked:
            args, kwargs = tree_map(_on_cpu, (args, kwargs))
        written = _written(func, args, kwargs)
        if self._tape is not None and there:
            for tensor in written:
                self._tape.save(tensor)
        known = {id(storage_of(tensor)) for tensor in given}
        out = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and id(storage_of(leaf)) not in known]
        for tensor in made:
            if there:
                self.hold(tensor)
            elif pinned:
                storage_of(tensor).emulated_pinned = True
        self.given += there and bool(made or written)
        if self._tape is not None and there and (made or written):
            self._tape.operations.append(Operation(func, args, kwargs, None if written else out, line()))
        return out

    def _check_places(self, name: str, args: tuple[Any, ...], given: Sequence[Tensor]) -> None:
        """Refuse what mixes devices, and count what makes the host wait.

        Raises:
            RuntimeError: as CUDA does.
        """
        there = [tensor for tensor in given if on_device(tensor)]
        if not there:
            return
        self.check_use(there)
        here = [one for one in given if not on_device(one) and one.dim() and (one.numel() or name != "cat")]
        by_index = name in BY_INDEX and on_device(args[0])
        if here and name not in CROSSING and not by_index:
            shapes = [[tuple(one.shape) for one in tensors] for tensors in (there, here)]
            raise RuntimeError(
                f"Expected all tensors to be on the same device: {name} at {line()} has {shapes[0]} on cuda:0 and"
                f" {shapes[1]} on cpu"
            )
        if name in READS or (by_index and (here or any(one.dtype == torch.bool for one in given[1:]))):
            self.wait(name)

    def _cross(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy between host and device; without waiting if the host's memory is pinned."""
        host = source if on_device(target) else target
        if not (non_blocking and is_pinned(host)) or self.capturing:
            self.wait("copy to the device" if on_device(target) else "copy to the host")
            return target.copy_(source)
        self.given += 1
        if on_device(target):
            target.copy_(source)
            self.copies.begin(Copy(host, host.numpy(), None, line()))
        else:
            self.copies.begin(Copy(host, host.numpy(), source.clone(), line()))
        return target

    def _free(self, nbytes: int) -> None:
        self.allocated -= nbytes


class Operations(TorchDispatchMode):
    """Dispatch of one thread's operations to the device."""

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._device.run(func, args, dict(kwargs or {}))


def _on_cpu(leaf: Any) -> Any:
    return CPU if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation writes to."""
    names = [one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    places = {one.name: number for number, one in enumerate(func._schema.arguments)}
    given = [args[places[name]] if places[name] < len(args) else kwargs.get(name) for name in names]
    return [one for one in tree_leaves(given) if isinstance(one, Tensor)]
