"""Language models without a tower. A family of them has no pictures; everything else is a decoder as of the others."""

from __future__ import annotations

from typing import Any, Final

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from specllava.models.checkpoint import Checkpoint
from specllava.models.tokens import TextProcessor
from specllava.models.families.interface import Family, Picture, ProcessedPrompt

CAP: Final = "final_logit_softcapping"


class TextFamily(Family):
    """Language models of one class: every prompt is a text."""

    sees = False
    way_to_draft = "name a smaller language model of the same tokens with --draft"

    def __init__(self, config: PretrainedConfig) -> None:
        self.name, self.target = config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

    def read_processor(self, checkpoint: Checkpoint) -> Any:
        return TextProcessor(checkpoint.tokenizer())

    def check(self, name: str, config: PretrainedConfig) -> None:
        if getattr(config, CAP, None) is not None:
            raise ValueError(
                f"{name} has {CAP} {getattr(config, CAP)}: its logits are capped after the head, which is not done here"
            )

    def pictures(self, prompt: ProcessedPrompt) -> list[Picture]:
        return []

    def encode(self, *given: Any) -> Any:
        raise ValueError(f"a {self.name} reads no pictures")

    stack = project = encode  # type: ignore[assignment]

    def num_image_tokens(self, model: PreTrainedModel, features: Any) -> list[int]:
        return []
