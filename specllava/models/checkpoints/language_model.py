"""Plain language models that a draft is made of."""

from __future__ import annotations

from typing import Final

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

LANGUAGE_MODELS: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")


def language_model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """Return the class of a plain language model by its ``model_type``; ``None`` for what no draft is made of."""
    if config.model_type not in LANGUAGE_MODELS:
        return None
    found: type[PreTrainedModel] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found
