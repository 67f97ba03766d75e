"""A captured pass: operations in their order with the very tensors that they read and made, to be run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.emulated.marks import storage_of


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a pass.

    Args:
        out: what it made; ``None`` of one that writes to what it was given.
        line: of the checkout, that asked for it.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    line: str

    @property
    def made(self) -> Iterator[Tensor]:
        yield from (leaf for leaf in tree_leaves(self.out) if isinstance(leaf, Tensor))


@dataclass(slots=True)
class Tape:
    """Operations of a capture, and what stood before it in the memory that it wrote to: a capture computes nothing."""

    operations: list[Operation] = field(default_factory=list)
    _before: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def save(self, tensor: Tensor) -> None:
        """Save the content of memory from before the capture, which an operation is going to write to."""
        storage = storage_of(tensor)
        if getattr(storage, "emulated_tape", None) is not self and id(storage) not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._before[id(storage)] = whole, whole.clone()

    def undo(self) -> None:
        """Take back what the capture wrote."""
        for held, content in self._before.values():
            held.copy_(content)
        self._before.clear()
        self._poison()

    def replay(self) -> None:
        """Run the operations on the same memory; afterwards what they made is overwritten, as by another graph."""
        for one in self.operations:
            again = one.func(*one.args, **one.kwargs)
            for held, new in zip(one.made, Operation(None, (), {}, again, "").made, strict=False):
                held.copy_(new)
        self._poison()

    def differs(self, other: Tape) -> str | None:
        """Return the first line at which another capture of the same pass does something else; ``None`` if none does.

        Tensors are the same if they lie at the same place, or if the same operation of the pass made them.
        """
        for one, two in zip_longest(self._described(), other._described()):
            if one is None or two is None or one[0] != two[0]:
                return (two or one or ((), ""))[1]
        return None

    def _described(self) -> Iterator[tuple[object, str]]:
        numbers: dict[int, int] = {}  # of the operation that made a storage

        def described(leaf: object) -> object:
            if not isinstance(leaf, Tensor):
                return leaf
            place = id(storage_of(leaf))
            return numbers.get(place, place), leaf.storage_offset(), tuple(leaf.shape), leaf.stride(), leaf.dtype

        for number, one in enumerate(self.operations):
            yield (one.func, [described(leaf) for leaf in tree_leaves((one.args, one.kwargs))]), one.line
            for made in one.made:
                numbers.setdefault(id(storage_of(made)), -1 - number)

    def _poison(self) -> None:
        for one in self.operations:
            for made in one.made:
                made.fill_(float("nan") if made.is_floating_point() else 1)
