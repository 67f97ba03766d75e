"""Memory that a pair takes on a device, estimated before a weight is read or downloaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import psutil
import torch
from transformers import PretrainedConfig, PreTrainedModel

from specllava.config import DecodingConfig
from specllava.models.feature_config import FeatureDraftConfig
from specllava.models.quantization import BYTES, WHOLE, QuantizationName

GB = 1e9
SHORTEST = 64  # tokens of context that are worth proposing


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by purpose. Activations come on top; they are small beside weights, batch 1.

    Args:
        target, draft: weights.
        caches: keys and values of both models, and the target's states if the draft reads them, for ``context`` tokens
            and a tree of the default options behind them. A dialogue takes all of it; an answer by itself takes what
            prompt and answer need.
        column: bytes of them for one more token.
    """

    target: float
    draft: float
    caches: float
    context: int
    column: int

    @property
    def total(self) -> float:
        return self.target + self.draft + self.caches

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.2f} GB of memory: target {self.target / GB:.2f}, draft {self.draft / GB:.2f},"
            f" caches for {self.context} tokens {self.caches / GB:.2f}"
        )


Build = tuple[type[PreTrainedModel], PretrainedConfig]


def estimate(
    target: Build,
    draft: Build | None,
    dtype: torch.dtype,
    scheme: QuantizationName = "none",
    context: int | None = None,
) -> Estimate:
    """Estimate the memory of two classes and configurations; models are built without storage, to count weights.

    Args:
        context: tokens of prompt and answer; as many as the target can hold without it.

    Raises:
        ValueError: a configuration that no model can be built of.
    """
    longest = max_context(target[1]) if context is None else context
    tree = DecodingConfig()
    columns = [(target[1], target_columns(longest, tree))]
    if draft is not None:
        columns.append((draft[1], draft_columns(longest, tree)))
    held = 0 if draft is None else state_bytes(draft[1], dtype)
    return Estimate(
        target=weight_bytes(*target, dtype, scheme),
        draft=0.0 if draft is None else weight_bytes(*draft, dtype),
        caches=float(sum(cache_bytes(config, count, dtype) for config, count in columns)) + held * columns[0][1],
        context=longest,
        column=sum(cache_bytes(config, 1, dtype) for config, _ in columns) + held,
    )


def target_columns(length: int, config: DecodingConfig) -> int:
    """Count columns of the target's KV cache for ``length`` tokens of prompt and answer and the largest tree."""
    return length + config.nodes + 1


def draft_columns(length: int, config: DecodingConfig) -> int:
    """Count columns of a draft's KV cache likewise; it holds every expanded node until the target has verified."""
    return target_columns(length, config) + max_expansions(config)


def max_expansions(config: DecodingConfig) -> int:
    """Count the nodes of one tree that the draft may expand: a beam's levels, or a whole static shape."""
    return max(config.depth * config.width, config.nodes)


def max_context(config: PretrainedConfig) -> int:
    """Return the number of tokens that a model can hold."""
    return int(config.get_text_config().max_position_embeddings)


def checked_context(wanted: int | None, config: PretrainedConfig) -> int:
    """Return the tokens of prompt and answer that a pair takes; without ``wanted`` as many as its target can hold.

    Raises:
        ValueError: more than that, or none.
    """
    longest = max_context(config)
    if wanted is not None and not 1 <= wanted <= longest:
        raise ValueError(f"--context is {wanted}: the target can hold 1 to {longest} tokens")
    return longest if wanted is None else wanted


def weight_bytes(
    build: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype, scheme: QuantizationName = "none"
) -> float:
    """Count the bytes of a model's weights in memory.

    Raises:
        ValueError: no model can be built of the configuration.
    """
    try:
        with torch.device("meta"):
            model = build(config)
    except Exception as error:  # of sizes that fit nowhere, torch and transformers raise whatever they meet
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"{config.name_or_path} has a configuration that no model can be built of: {why}") from error
    taken = float(sum(weight.numel() for weight in model.parameters()) * dtype.itemsize)
    if scheme != "none":
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and not any(part in name for part in WHOLE):
                taken -= module.weight.numel() * (dtype.itemsize - BYTES[scheme])
    return taken


def cache_bytes(config: PretrainedConfig, context: int, dtype: torch.dtype) -> int:
    """Count the bytes of the keys and values of ``context`` tokens."""
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * text.num_key_value_heads * head * context * dtype.itemsize)


def state_bytes(draft: PretrainedConfig, dtype: torch.dtype) -> int:
    """Count the bytes of the target's states that are held of each of its columns for a draft that reads them."""
    if not isinstance(draft, FeatureDraftConfig):
        return 0
    return len(draft.state_layers) * int(draft.target_hidden_size or draft.hidden_size) * dtype.itemsize


def free_bytes(place: torch.device, spread: bool) -> int:
    """Return the bytes free on a device; with ``spread`` those of all GPUs and of the machine together."""
    here = int(psutil.virtual_memory().available)
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else here


def check_memory(name: str, needed: Estimate, place: torch.device, spread: bool) -> str:
    """Check that an estimate fits, and return a line with the memory that is needed and that is free.

    Raises:
        ValueError: more is needed than is free.
    """
    free = free_bytes(place, spread)
    where = "all devices" if spread else str(place)
    told = f"{name} needs {needed}; {where} has {free / GB:.2f} GB free"
    if needed.total > free:
        room = needed.context - math.ceil((needed.total - free) / needed.column)  # tokens that would fit
        shorter = f"--context {room}, " if room >= SHORTEST else ""
        raise ValueError(f"{told}: try {shorter}a smaller --dtype, --quantization, --device-map or another --device")
    return told
