"""What a pair will take of a device's memory, known before a weight is read or downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.quantisation import BYTES, WHOLE, QuantiseName

GB = 1e9


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for. Activations come on top; they are small beside weights, batch 1.

    Args:
        target, draft: weights.
        caches: keys and values of both models for ``context`` tokens.
    """

    target: float
    draft: float
    caches: float
    context: int

    @property
    def total(self) -> float:
        return self.target + self.draft + self.caches

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.2f} GB of memory: target {self.target / GB:.2f}, draft {self.draft / GB:.2f},"
            f" caches for {self.context} tokens {self.caches / GB:.2f}"
        )


Build = tuple[type[PreTrainedModel], PretrainedConfig]


def estimate(target: Build, draft: Build | None, dtype: torch.dtype, scheme: QuantiseName = "none") -> Estimate:
    """The estimate for two classes and configurations; models are built without storage, to count what they hold."""
    context = int(target[1].get_text_config().max_position_embeddings)
    models = [target] if draft is None else [target, draft]
    return Estimate(
        target=weight_bytes(*target, dtype, scheme),
        draft=0.0 if draft is None else weight_bytes(*draft, dtype),
        caches=float(sum(cache_bytes(config, context, dtype) for _, config in models)),
        context=context,
    )


def weight_bytes(
    build: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype, scheme: QuantiseName = "none"
) -> float:
    """Bytes of a model's weights in memory."""
    with torch.device("meta"):
        model = build(config)
    taken = float(sum(weight.numel() for weight in model.parameters()) * dtype.itemsize)
    if scheme != "none":
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and not any(part in name for part in WHOLE):
                taken -= module.weight.numel() * (dtype.itemsize - BYTES[scheme])
    return taken


def cache_bytes(config: PretrainedConfig, context: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of ``context`` tokens."""
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * text.num_key_value_heads * head * context * dtype.itemsize)


def free_bytes(place: torch.device, spread: bool) -> int:
    """Memory that is free there; with ``spread`` that of all GPUs and of the machine together."""
    here = int(psutil.virtual_memory().available)
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else here


def check_memory(name: str, needed: Estimate, place: torch.device, spread: bool) -> str:
    """A line that says what is needed and what is free.

    Raises:
        ValueError: more is needed than is free.
    """
    free = free_bytes(place, spread)
    where = "all devices" if spread else str(place)
    if needed.total > free:
        raise ValueError(
            f"{name} needs {needed}; {where} has {free / GB:.2f} GB free: try a smaller --dtype, --quantise,"
            " --device-map or another --device"
        )
    return f"{name} needs {needed}; {where} has {free / GB:.2f} GB free"
