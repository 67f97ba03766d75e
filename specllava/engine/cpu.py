"""A CPU at its speed: linear layers with packed weights, and the number of threads that is fastest.

Packed weights have the layout that oneDNN's products read. The operations are those that Inductor's freezing emits
(``torch/_inductor/mkldnn_lowerings.py``). Their names are private, so they are tried at load; where they are missing or
wrong, layers stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaModel, PreTrainedModel

from specllava.engine.llama_layers import hooked

# Rows of a product from which it is faster than by the weights that a layer has; below, columns are read once.
FEWEST_ROWS: Final[Mapping[torch.dtype, int]] = MappingProxyType({torch.float32: 4, torch.bfloat16: 1})
BATCH: Final = 16  # rows that the layout is made for
SECONDS: Final = 1.0  # of all measurements
SURE: Final = 1.05  # times as fast as with more threads: few measurements do not show less


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A packed copy of a weight ``[out, in]``, and what shows that the weight has not changed since.

    Args:
        version: counts changes in place, but none through ``weight.data``, as adapters are merged.
        checksums: of each row or column; they read a weight as often as one pass over one token does.
    """

    packed: Tensor
    version: int
    checksums: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Self:
        return cls(_pack(weight.detach()), weight._version, _checksums(weight))

    def is_of(self, weight: Tensor) -> bool:
        return self.version == weight._version and torch.equal(self.checksums, _checksums(weight))


class PackedWeights:
    """Packed copies of the weights of a model's decoder and head, for passes without gradients.

    A copy is a snapshot: :meth:`refresh` compares each with its weight. Layers with hooks, and modules that replace a
    layer, are called.

    Args:
        layers: linear layers with plain weights of one dtype.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        self._layers = layers
        self._fewest = FEWEST_ROWS[layers[0].weight.dtype]
        self._snapshots: dict[nn.Linear, Snapshot] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Return packed weights of a model; ``None`` where no layer can be packed."""
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        modules = [*decoder.modules(), head] if type(decoder) is LlamaModel else [head]  # other decoders are called
        layers = [module for module in modules if type(module) is nn.Linear and _is_plain(module.weight)]
        if not layers or not can_pack(layers[0].weight.dtype):
            return None
        return cls([layer for layer in layers if layer.weight.dtype == layers[0].weight.dtype])

    def refresh(self) -> None:
        """Pack what has changed since the last answer began."""
        for layer in self._layers:
            weight, snapshot = layer.weight, self._snapshots.get(layer)
            if type(layer) is not nn.Linear or hooked(layer) or not _is_plain(weight):
                self._snapshots.pop(layer, None)
            elif snapshot is None or not snapshot.is_of(weight):
                self._snapshots[layer] = Snapshot.of(weight)

    def __call__(self, layer: nn.Module, states: Tensor) -> Tensor:
        """Run a linear layer on ``[..., rows, in]``."""
        rows = states.shape[-2] if states.dim() > 1 else 0
        snapshot = self._snapshots.get(layer) if rows >= self._fewest else None  # type: ignore[call-overload]
        if snapshot is None:
            called: Tensor = layer(states)
            return called
        bias = layer.bias if isinstance(layer.bias, Tensor) else None
        product = _linear(states.reshape(-1, states.shape[-1]), snapshot.packed, bias)
        return product.view(*states.shape[:-1], -1)


def can_pack(dtype: torch.dtype) -> bool:
    """Check on this processor that packed products compute what plain ones do, within rounding."""
    if dtype not in FEWEST_ROWS or not torch.backends.mkldnn.is_available():
        return False
    source = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(size, 64, generator=source).to(dtype) for size in (48, 5))
    try:
        product = _linear(rows, _pack(weight), None)
    except (AttributeError, RuntimeError):  # no such operation, or none for this dtype on this processor
        return False
    return torch.allclose(product.double(), F.linear(rows.double(), weight.double()), rtol=0.02, atol=0.1)


def _is_plain(weight: Tensor) -> bool:
    """Check for a weight on the CPU whose changes can be seen; one made in inference mode counts no version."""
    on_cpu = type(weight.data) is Tensor and weight.device.type == "cpu" and weight.dtype in FEWEST_ROWS
    stored = _as_stored(weight)
    even = stored.is_contiguous() and stored.shape[-1] * weight.itemsize % 8 == 0
    return on_cpu and even and not weight.is_inference()


def _as_stored(weight: Tensor) -> Tensor:
    """Return a weight as it lies in memory: ``[out, in]``, or ``[in, out]`` where its columns do."""
    return weight.detach() if weight.is_contiguous() else weight.detach().t()


def _checksums(weight: Tensor) -> Tensor:
    """Sum rows or columns as 64-bit integers, exactly: any change of a single number changes its sum.

    They are read as they lie in memory, at the speed of memory.
    """
    return _as_stored(weight).view(torch.int64).sum(-1)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), BATCH)
    return packed


def _linear(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


@torch.inference_mode()
def fastest_threads(step: Callable[[], None], most: int) -> int:
    """Return the number of threads with which ``step`` is fastest: 1, 2, 4 … up to ``most``, in turn.

    A busy machine is faster with fewer threads than it has cores. Measured in the calling thread for :data:`SECONDS`,
    but at least one step for each number of threads.

    Args:
        step: runs the passes of a decode step.
    """
    before, counts = torch.get_num_threads(), [count for count in (1, 2, 4, 8, 16, 32, 64) if count < most] + [most]
    if len(counts) == 1:
        return most
    fastest = dict.fromkeys(counts, float("inf"))
    until = time.perf_counter() + SECONDS
    try:
        step()  # allocates
        while True:
            for count in counts:
                torch.set_num_threads(count)
                started = time.perf_counter()
                step()
                fastest[count] = min(fastest[count], time.perf_counter() - started)
            if time.perf_counter() >= until:
                break
    finally:
        torch.set_num_threads(before)
    return min(counts, key=lambda count: fastest[count] * (1.0 if count == most else SURE))
