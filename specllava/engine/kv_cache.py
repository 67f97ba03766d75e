"""KV cache of one text and of the tree under verification. Preallocated: storage never moves.

A slot holds keys and values of one token in all layers. A tree takes one slot per node after the context. ``commit``
moves the accepted branch together, which leaves what decoding its tokens one by one would have left. Labels (tokens or
picture keys) and hidden states move along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from specllava.prompt import Label


class KVCache(Cache):
    """Keys and values ``[layers, 2, 1, heads, capacity + scratch, head_dim]``, allocated by the first pass.

    A pass writes the slots ``writes`` and reads the first ``window``. :meth:`record` counts them afterwards.

    Args:
        capacity: slots for prompt, answer and the largest tree.
        scratch: slots after them, which padding of a pass writes and no row reads.
        one_slab: all layers share a device and a shape. Otherwise each layer is allocated by itself.
    """

    is_compileable = False

    def __init__(self, layers: int, capacity: int, scratch: int = 0, one_slab: bool = True) -> None:
        super().__init__(layers=[])
        self.capacity, self.scratch, self.length = capacity, scratch, 0
        self.labels: list[Label] = []
        self.positions: list[int] = []  # in the text, by slot: those of a tree are not consecutive
        self.states: Tensor | None = None  # by slot, [capacity + scratch, width]
        self.writes: slice | Tensor = slice(0)
        self.window = 0
        self.slabs: list[Tensor] = []
        self._layers: list[Tensor | None] = [None] * layers
        self._one_slab = one_slab

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the slots of this pass, and return views of all that it reads."""
        both = self._layers[layer_idx]
        if both is None:
            both = self._allocate(layer_idx, key_states)
        keys, values = both
        if isinstance(self.writes, slice):
            keys[:, :, self.writes], values[:, :, self.writes] = key_states, value_states
        else:
            keys.index_copy_(2, self.writes, key_states)
            values.index_copy_(2, self.writes, value_states)
        return keys[:, :, : self.window], values[:, :, : self.window]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0

    def reserve(self, count: int) -> None:
        """Reserve ``count`` slots after those in use for the next pass.

        Raises:
            ValueError: they do not fit.
        """
        end = self.length + count
        if end > self.capacity:
            raise ValueError(f"the KV cache has {self.capacity} slots, {end} are needed")
        self.writes, self.window = slice(self.length, end), end

    def record(self, labels: Sequence[Label], positions: Sequence[int]) -> None:
        """Record labels and positions of the slots that a pass has written."""
        self.length += len(labels)
        self.labels += labels
        self.positions += positions

    def write_states(self, states: Tensor) -> None:
        """Store hidden states ``[tokens, width]`` of the slots that this pass writes."""
        if self.states is None:
            self.states = states.new_empty((self.capacity + self.scratch, states.shape[-1]))
        if isinstance(self.writes, slice):
            self.states[self.writes] = states
        else:
            self.states.index_copy_(0, self.writes, states)

    def states_from(self, start: int) -> Tensor | None:
        """Return hidden states of the slots from ``start`` on, ``[slots, width]``; ``None`` if none are stored."""
        return None if self.states is None else self.states[start : self.length]

    def common_prefix(self, labels: Sequence[Label]) -> int:
        """Count the leading slots with equal labels; a picture without a key equals none."""
        pairs = zip(self.labels, labels, strict=False)
        return next(
            (slot for slot, (cached, wanted) in enumerate(pairs) if cached != wanted or cached is None),
            min(len(self.labels), len(labels)),
        )

    def truncate(self, length: int) -> None:
        """Drop the slots from ``length`` on."""
        self.commit(length, [])

    def commit(self, base: int, offsets: Sequence[int]) -> None:
        """Keep the first ``base`` slots and the slots ``base + offset``, moved together; drop all others.

        Raises:
            ValueError: a slot that no pass has written.
        """
        if offsets and base + max(offsets) >= self.length:
            raise ValueError(f"slot {base + max(offsets)} was never written: {self.length} are in use")
        first = next((number for number, offset in enumerate(offsets) if number != offset), len(offsets))
        if moved := [base + offset for offset in offsets[first:]]:
            source, target = upload(moved, self.slabs[0].device), slice(base + first, base + len(offsets))
            for slab in self.slabs:
                slab[..., target, :] = slab.index_select(4, source.to(slab.device))
            if self.states is not None:
                self.states[target] = self.states.index_select(0, source)
        self.labels[base:] = [self.labels[base + offset] for offset in offsets]
        self.positions[base:] = [self.positions[base + offset] for offset in offsets]
        self.length = base + len(offsets)

    def copy_from(self, other: KVCache) -> None:
        """Copy the slots of a cache of smaller capacity; this one has none in use."""
        for index, both in enumerate(other._layers):
            if both is not None:
                own = self._layers[index]
                own = self._allocate(index, both[0]) if own is None else own
                own[..., : other.length, :] = both[..., : other.length, :]
        if other.states is not None:
            self.writes = slice(0, other.length)
            self.write_states(other.states[: other.length])
        self.labels, self.positions, self.length = list(other.labels), list(other.positions), other.length

    def _allocate(self, index: int, keys: Tensor) -> Tensor:
        """Allocate a layer like its keys ``[1, heads, tokens, head_dim]``, and on one slab all layers.

        Slots of a padded pass are zeroed: a masked slot enters attention times zero. Others stay untouched memory.
        """
        batch, heads, _, size = keys.shape
        count = len(self._layers) if self._one_slab else 1
        shape = (count, 2, batch, heads, self.capacity + self.scratch, size)
        slab = keys.new_zeros(shape) if self.scratch else keys.new_empty(shape)
        self.slabs.append(slab)
        first = 0 if self._one_slab else index
        self._layers[first : first + count] = slab.unbind()
        return slab[index - first]


def upload(values: Sequence[int], device: torch.device) -> Tensor:
    """Copy integers to a device without waiting for it."""
    host = torch.tensor(values, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)
