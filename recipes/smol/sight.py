"""What a language model learns in order to see: a projector, and low-rank adapters of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

SCALE: Final = 1.0
ADAPTED: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Adapter(nn.Module):
    """Low-rank update of a linear layer (LoRA, arXiv 2106.09685): at first it adds nothing."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.outer = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(F.linear(inputs, self.inner), self.outer) * SCALE


class Sight(nn.Module):
    """The weights of a LLaVA that learn; the model itself stays outside and unchanged.

    Args:
        model: its language model, head and tower are frozen here, and call the adapters from then on.
    """

    def __init__(self, model: LlavaForConditionalGeneration, rank: int) -> None:
        super().__init__()
        model.requires_grad_(False)
        self.projector = model.model.multi_modal_projector.float().requires_grad_(True)
        self.adapters = nn.ModuleDict()
        self._used = True
        for name, layer in model.model.language_model.named_modules():
            if isinstance(layer, nn.Linear) and name.endswith(ADAPTED):
                adapter = Adapter(layer, rank)
                layer.register_forward_hook(self._adding(adapter))
                self.adapters[name.replace(".", "/")] = adapter

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """Run the language model as it was."""
        self._used = False
        try:
            yield
        finally:
            self._used = True

    def _adding(self, adapter: Adapter) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            return output + adapter(inputs[0]).to(output.dtype) if self._used else output

        return add

    def exported(self) -> dict[str, Tensor]:
        """Return the weights by the names of ``sight.safetensors``, in bfloat16."""
        named = {f"model.multi_modal_projector.{name}": one for name, one in self.projector.state_dict().items()}
        for name, adapter in self.adapters.items():
            module = "model.language_model." + name.replace("/", ".")
            assert isinstance(adapter, Adapter)
            named |= {f"{module}.lora_A": adapter.inner, f"{module}.lora_B": adapter.outer}
        return {name: one.detach().bfloat16().contiguous() for name, one in named.items()}
