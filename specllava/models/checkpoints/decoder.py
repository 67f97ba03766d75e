"""A decoder's attention by its configuration, and the decoders that cannot verify trees."""

from __future__ import annotations

from typing import Any, Final

from transformers import PretrainedConfig

FULL, SLIDING = "full_attention", "sliding_attention"
GROWING_ROPES: Final = ("dynamic", "longrope")  # rotary angles depend on how long the text is


def layer_types(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the attention of each decoder layer: ``layer_types``, or one for all by ``sliding_window``."""
    if config.model_type == "llama":  # which attends to everything, whatever else its configuration carries along
        return (FULL,) * int(config.num_hidden_layers)
    named: Any = getattr(config, "layer_types", None)
    if named:
        return tuple(named)
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return (SLIDING if sliding else FULL,) * int(config.num_hidden_layers)


def check_decoder(name: str, config: PretrainedConfig) -> None:
    """Refuse a decoder whose tree passes would not be lossless.

    Raises:
        ValueError: a layer that keeps a recurrent state or attends in chunks, or rotary angles that change with the
            length of the text in the middle of an answer.
    """
    others = sorted(set(layer_types(config)) - {FULL, SLIDING})
    if others:
        why = (
            "attend in chunks, and a draft tree may reach over a chunk's end"
            if "chunk" in others[0]
            else "keep one state for the whole text, from which a branch that is refused cannot be taken back"
        )
        raise ValueError(f"{name} has {others[0]} layers, which {why}: full and sliding attention can verify trees")
    rope: Any = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {part.get("rope_type") for part in rope.values() if isinstance(part, dict)}
    if "longrope" in kinds:
        raise ValueError(
            f"{name} has rotary embeddings of type longrope, whose angles change where a text outgrows"
            " original_max_position_embeddings: a tree that reaches over it would not be lossless"
        )
