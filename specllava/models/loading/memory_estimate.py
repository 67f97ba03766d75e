"""Memory that a pair takes on a device and memory that is free, before a weight is read or downloaded."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.checkpoints.language_model import kv_shape, max_context
from specllava.models.drafts.feature_draft import FeatureDraftConfig
from specllava.models.loading.load_options import QuantizationName
from specllava.models.loading.memory import ENOUGH, GB, SHORTEST, Estimate, ModelSize, free_bytes, pair_memory
from specllava.models.loading.quantization import BYTES, decoder_weights

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
    small = None if draft is None else size_of(*draft)
    longest = max_context(target[1]) if context is None else context
    return pair_memory(size_of(*target), small, longest, dtype.itemsize, BYTES.get(scheme))


def size_of(build: type[PreTrainedModel], config: PretrainedConfig) -> ModelSize:
    """Count the numbers of a model that its memory follows from; it is built without storage.

    Raises:
        ValueError: no model can be built of the configuration.
    """
    model = without_storage(build, config)
    text = config.get_text_config()
    kv_heads, head_dim = kv_shape(text)
    return ModelSize(
        weights=sum(weight.numel() for weight in model.parameters()),
        layers=text.num_hidden_layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        linear=sum(module.weight.numel() for module in decoder_weights(model)),
        states=state_numbers(config),
        own_states=config.hidden_size if isinstance(config, FeatureDraftConfig) else 0,
    )


def without_storage(build: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """Build a model without storage for its weights.

    Raises:
        ValueError: no model can be built of the configuration.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except Exception as error:  # of sizes that fit nowhere, torch and transformers raise whatever they meet
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"{config.name_or_path} has a configuration that no model can be built of: {why}") from error


def state_numbers(draft: PretrainedConfig) -> int:
    """Count the numbers of the target's states that are held of each of its columns for a draft that reads them."""
    if not isinstance(draft, FeatureDraftConfig):
        return 0
    return len(draft.state_layers) * int(draft.target_hidden_size or draft.hidden_size)


def check_memory(
    name: str, needed: Estimate, device: torch.device, spread: bool, shorten: bool = False
) -> tuple[Estimate, str]:
    """Check that an estimate fits. Return it as it is taken, and a line with the memory needed and free.

    On a CPU packed weights are counted too, where they fit.

    Args:
        shorten: where the context that was counted does not fit, take as many tokens as do, :data:`ENOUGH` at least.

    Raises:
        ValueError: more is needed than is free.
    """
    free = free_bytes(device, spread)
    if device.type == "cpu" and not spread:
        needed = needed.with_packed(free)
    where = "all devices" if spread else str(device)
    line = f"{name} needs {needed}; {where} has {free / GB:.2f} GB free"
    if needed.total <= free:
        return needed, line
    room = needed.room(free)
    if shorten and room >= ENOUGH:
        line = f"{line}, which is enough for {room}: prompt and answer have as many at most"
        return replace(needed, context=room), line
    shorter = f"--context {room}, " if room >= SHORTEST else ""
    raise ValueError(f"{line}: try {shorter}a smaller --dtype, --quantization, --device-map or another --device")
