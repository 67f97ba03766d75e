"""Language models: classes that can draft, attention of their layers, longest text, device."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

LANGUAGE_MODELS: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3")
FULL, SLIDING = "full_attention", "sliding_attention"
GROWING_ROPES: Final = ("dynamic", "longrope")  # rotary angles depend on how long the text is


def language_model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """Return the class of a plain language model by its ``model_type``; ``None`` for what no draft is made of."""
    if config.model_type not in LANGUAGE_MODELS:
        return None
    model_class: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model_class


def layer_types(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the attention of each decoder layer: ``layer_types``, or one for all by ``sliding_window``."""
    if config.model_type == "llama":  # which attends to everything, whatever else its configuration carries along
        return (FULL,) * int(config.num_hidden_layers)
    named: Any = getattr(config, "layer_types", None)
    if named:
        return tuple(named)
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return (SLIDING if sliding else FULL,) * int(getattr(config, "num_hidden_layers", 0))


def check_decoder(name: str, config: PretrainedConfig) -> None:
    """Refuse a decoder whose tree passes would not be lossless.

    Raises:
        ValueError: a layer that keeps a recurrent state or attends in chunks, a kernel without masks, or rotary
            angles that change within an answer.
    """
    if odd := sorted(set(layer_types(config)) - {FULL, SLIDING}):
        why = "keep one state for the whole text, from which a branch that is refused cannot be taken back"
        if "chunk" in odd[0]:
            why = "attend in chunks, and a draft tree may reach over a chunk's end"
        raise ValueError(f"{name} has {odd[0]} layers, which {why}: full and sliding attention can verify trees")
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(
            f"{name} has a {config.model_type} decoder, whose KV cache holds latent vectors (kv_lora_rank): trees are"
            " verified over keys and values of each head alone"
        )
    kernel = getattr(config, "_attn_implementation", None)
    if kernel not in (None, "sdpa", "eager"):
        raise ValueError(f'{name}: {kernel} takes no tree masks: load the model with attn_implementation="sdpa"')
    rope: Any = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {part.get("rope_type") for part in rope.values() if isinstance(part, dict)}
    if "longrope" in kinds:
        raise ValueError(
            f"{name} has rotary embeddings of type longrope, whose angles change where a text outgrows"
            " original_max_position_embeddings: a tree that reaches over it would not be lossless"
        )


def checked_context(wanted: int | None, config: PretrainedConfig) -> int:
    """Return the tokens of prompt and answer that a pair takes; without ``wanted`` as many as its target can hold.

    Raises:
        ValueError: more than that, or none; a decoder that does not say how many.
    """
    text = config.get_text_config()
    if not hasattr(text, "max_position_embeddings"):
        raise ValueError(f"a {text.model_type} decoder is not known here: it has no max_position_embeddings")
    longest = int(text.max_position_embeddings)
    if wanted is not None and not 1 <= wanted <= longest:
        raise ValueError(f"--context is {wanted}: the target can hold 1 to {longest} tokens")
    return longest if wanted is None else wanted


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device that takes a model's token ids and pictures.

    Of a model on several devices that is where its word embeddings run, whose weights may lie elsewhere until then.
    """
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def parse_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the GPU if there is one.

    Raises:
        ValueError: no such device, or none here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name} is not there: {torch.cuda.device_count()} GPUs are available")
    return device


def now(device: torch.device) -> float:
    """Return wall-clock seconds after all work given to a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
