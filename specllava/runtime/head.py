"""The output head: logits of hidden states, in float32 where the weights are in half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

HALF = (torch.bfloat16, torch.float16)


class OutputHead:
    """Multiplies hidden states with a model's output embeddings.

    A bfloat16 head rounds logits around 10 to steps of 0.06, so that different tokens tie exactly. Its weights are
    multiplied as they are, but the sums are kept in float32. Heads that are no plain linear layer compute as they do.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._module: nn.Module = model.get_output_embeddings()
        weight = getattr(self._module, "weight", None)
        plain = type(self._module) is nn.Linear and self._module.bias is None and not hasattr(self._module, "_hf_hook")
        self._rounds = plain and weight is not None and weight.dtype in HALF and type(weight.data) is Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """Return logits ``[..., vocab]`` of states ``[..., hidden]``."""
        if not self._rounds:
            logits: Tensor = self._module(states)
            return logits
        weight: Tensor = self._module.weight  # type: ignore[assignment]
        if weight.device.type == "cuda":
            rows = states.reshape(-1, states.shape[-1])
            return torch.mm(rows, weight.t(), out_dtype=torch.float32).view(*states.shape[:-1], -1)
        return F.linear(states.float(), weight.float())
